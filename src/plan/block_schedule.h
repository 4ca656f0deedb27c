// SPDX-License-Identifier: Apache-2.0
// The order of everything in a step, as one list: loads, computations and stores. The decoder
// executes it, whoever prices or shows a step reads it.
//
// A step goes layer by layer, and inside a layer micro-batch by micro-batch (FlexGen, Algorithm 1).
// What is loaded ahead of its use stands there, before the computation that hides it.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway {

enum class StepAction : uint8_t {
  kLoadWeights,    // of `layer` begin to come, into the slot that was left first
  kUseWeights,     // of `layer`: what is computed from here on waits for them
  kLeaveWeights,   // of `layer`: their slot is free
  kEmbed,          // makes the rows of `batch`
  kLoadRows,       // of `batch` begin to come
  kTakeRows,       // of `batch`, for what is computed from here on
  kStoreRows,      // they go back to where they live
  kDropRows,       // nobody will take them again
  kLoadKv,         // pages of a group begin to come
  kProject,        // norm, q, k and v
  kStartOnHost,    // the CPU attends to its rows
  kAttend,         // of rows whose KV is on the device
  kAttendSwapped,  // of a group, when its pages are there
  kStoreKv,        // what the group has changed goes back
  kJoinHost,       // the CPU's rows are there
  kFinishLayer,    // the rest of the layer: output of attention, MLP
  kGather,         // the rows of `batch` whose logits are wanted
  kHead,           // logits of all of them; with a `layer`, those of a piece of the head
};

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
  bool logits = false;  // of some rows they are wanted
  bool operator==(const BatchShape&) const = default;
};
struct StepShape {
  int layers = 0;
  // Layers with weights that come from elsewhere, in order; behind them, numbered on, the pieces of
  // a head that does.
  std::vector<int> streamed = {};
  int weight_slots = 2;  // that they come into; all were filled before the first step
  int kv_buffers = 2;    // groups whose pages are on the device at a time
  bool overlap = true;   // false: everything is loaded right before its use
  std::vector<BatchShape> batches = {};
  bool operator==(const StepShape&) const = default;
};

// With overlap, weights of the first layers come for the next step while the last ones of this one
// compute.
std::vector<StepEvent> schedule_step(const StepShape& shape);

}  // namespace spillway
