// SPDX-License-Identifier: Apache-2.0
// The order of everything in a step, as one list: loads, computations and stores. The decoder
// executes it, whoever prices or shows a step reads it.
//
// A step goes layer by layer, and inside a layer micro-batch by micro-batch (FlexGen, Algorithm 1).
// What is loaded ahead of its use stands there, before the computation that hides it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/lowered_layer.h"
#include "plan/stream_order.h"

namespace spillway {

enum class EventKind : uint8_t {
  kLoad,     // begins to come to the device
  kWait,     // what is computed from here on finds it there
  kRun,      // the device computes
  kStart,    // work begins beside what the device computes next
  kJoin,     // that work is done, for what is computed from here on
  kStore,    // goes back to where it lives
  kRelease,  // its memory on the device is free
};

// What an event is about.
enum class EventSubject : uint8_t {
  kOp,       // `op` of `layer`: all that is on the device, or by `group`: the rows of a segment
             // of weights, or the sequences whose KV was loaded as that group
  kWeights,  // the segment `group`, numbered in the order of use
  kKv,       // pages of `group` of the batch's swapped sequences, in `layer`
  kLayerKv,  // all KV of a swapped layer; loaded without a batch: what did not come ahead of its
             // step
  kHiddenStates,  // the residual stream of `batch`
  kCpu,           // the CPU's rows of a linear op, or its sequences of an attention op
  kPartitions,    // attention to sequences whose KV is in several memories
  kHandOver,  // the residual stream of `batch`, taken over from the part of the model before this
              // one (load), or handed over to the next part (store), which releases it; the device
              // waits for both
};

struct StepEvent {
  EventKind kind = EventKind::kRun;
  EventSubject subject = EventSubject::kOp;
  int layer = -1;  // kEmbeddingList; as many as there are: the head's list
  int op = -1;     // in that list as devices run it (LoweredLayer::ops); -1 of an embedding's list
                   // without ops: the angles of its ropes alone
  int batch = -1;
  int group = -1;
  bool operator==(const StepEvent&) const = default;
};

// "load weights", "qkv", "qkv on the CPU": what a trace shows.
std::string event_name(const LoweredModel& model, const StepEvent& event);

// Whether the host decides what such an event does, and only when its turn in the step has come: a
// recorded graph ends before it. Its price is the expected one.
bool is_decided_in_step(const StepEvent& event);

// A part of a step's events: those [begin, ops) that are decided when they have their turn, and
// those [ops, end) behind them, which a device may record as one graph.
struct GraphSegment {
  size_t begin = 0, ops = 0, end = 0;
  bool operator==(const GraphSegment&) const = default;
};
std::vector<GraphSegment> graph_segments(std::span<const StepEvent> events);

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
  int op = 0;
  int pieces = 1;       // that come there
  bool on_cpu = false;  // has rows that the CPU multiplies
  bool operator==(const StreamedShape&) const = default;
};
struct StepShape {
  std::shared_ptr<const LoweredModel> model = {};
  std::vector<StreamedShape> streamed = {};  // in the order of their use
  std::vector<int> slotfuls = {};   // of their pieces: which come into a slot together, 0, 1, ...
  int weight_slots = 2;             // all were filled before the first step
  int pieces_read_ahead = 0;        // from disk, before there is room for them in a slot
  int kv_buffers = 2;               // groups whose pages are on the device at a time
  int swapped_layers = 0;           // layers whose KV is swapped (choose_swapped_layers)
  std::vector<int> swappable = {};  // of these layers; empty: of all
  int layer_buffers = 0;            // buffers on the device that swapped layers share
  bool overlap = true;              // false: everything is loaded right before its use
  std::vector<BatchShape> batches = {};
  bool operator==(const StepShape&) const = default;

  int layers() const { return model->layer_count(); }
};

StreamedShape streamed_shape(const StreamedLinear& linear);

// A step of a part of a model (model/model_part.h) begins with hidden states that it takes over
// where the model has no embedding, and ends with handing them over where it has no head.
//
// With overlap, pieces of the first layers come for the next step while the last ones of this one
// compute, and so does the KV of the first swapped layers. With several batches, all pieces of a
// layer must find room.
std::vector<StepEvent> schedule_step(const StepShape& shape);

}  // namespace spillway
