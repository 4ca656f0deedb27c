// SPDX-License-Identifier: Apache-2.0
// The order of everything in a step, as one list: loads, computations and stores. The decoder
// executes it, whoever prices or shows a step reads it.
//
// A step goes layer by layer, and inside a layer micro-batch by micro-batch (FlexGen, Algorithm 1).
// What is loaded ahead of its use stands there, before the computation that hides it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/stream_order.h"

namespace spillway {

enum class StepAction : uint8_t {
  // Pieces of weights that stream have a number in `group`, in the order of their use.
  kLoadWeights,   // a piece begins to come, into the slot that was left first
  kUseWeights,    // what is computed from here on waits for the piece
  kLeaveWeights,  // its slot is free
  kMultiply,      // the rows of the piece, in the linear op at hand
  kJoinLinear,    // the CPU's rows of the linear op at hand are there
  kEmbed,         // makes the rows of `batch`
  kLoadRows,      // of `batch` begin to come
  kTakeRows,      // of `batch`, for what is computed from here on
  kStoreRows,     // they go back to where they live
  kDropRows,      // nobody will take them again
  kLoadKv,        // pages of a group begin to come
  // Linear ops, as far as their matrices are on the device. The CPU begins with its rows of those
  // that are not.
  kProject,        // norm, q, k and v
  kBeginParts,     // of rows whose KV is in several memories: nothing of it has been seen
  kStartOnHost,    // the CPU attends to its rows
  kAttend,         // of rows whose KV is on the device
  kAttendSwapped,  // of a group, when its pages are there
  kStoreKv,        // what the group has changed goes back
  kJoinHost,       // the CPU's rows are there
  kEndParts,       // all has been seen
  kAttentionOut,   // linear
  kUp,             // linear: norm, gate and up, the activation
  kDown,           // linear
  kFinishLayer,    // norms that come behind it
  kGather,         // the rows of `batch` whose logits are wanted
  kHead,           // linear: logits of all of them
};

const char* action_name(StepAction action);

struct StepEvent {
  StepAction action;
  int layer = -1;
  int batch = -1;
  int group = -1;
  bool operator==(const StepEvent&) const = default;
};

// What of a step decides its order.
struct BatchShape {
  bool rows_away = false;  // its residual stream is not on the device between layers
  bool on_device = true;   // some of its rows have their KV there
  bool on_host = false;    // to some the CPU attends
  // Groups of rows whose pages come to the device: whether each reads what the one before it has
  // written, and so cannot come before that is back.
  std::vector<bool> swaps = {};
  bool parts = false;   // to some KV is attended in parts, wherever they are
  bool logits = false;  // of some rows they are wanted
  bool operator==(const BatchShape&) const = default;
};
// A linear op with weights that are not on the device.
struct StreamedShape {
  int layer = 0;  // as many as there are: the head
  LinearGroup group = LinearGroup::kProject;
  int pieces = 1;       // that come there
  bool on_cpu = false;  // has rows that the CPU multiplies
  bool operator==(const StreamedShape&) const = default;
};
struct StepShape {
  int layers = 0;
  std::vector<StreamedShape> streamed = {};  // in the order of their use
  std::vector<int> slotfuls = {};  // of their pieces: which come into a slot together, 0, 1, ...
  int weight_slots = 2;            // all were filled before the first step
  int pieces_read_ahead = 0;       // from disk, before there is room for them in a slot
  int kv_buffers = 2;              // groups whose pages are on the device at a time
  bool overlap = true;             // false: everything is loaded right before its use
  std::vector<BatchShape> batches = {};
  bool operator==(const StepShape&) const = default;
};

StreamedShape streamed_shape(const StreamedLinear& linear);

// With overlap, pieces of the first layers come for the next step while the last ones of this one
// compute. With several batches, all pieces of a layer must find room.
std::vector<StepEvent> schedule_step(const StepShape& shape);

}  // namespace spillway
