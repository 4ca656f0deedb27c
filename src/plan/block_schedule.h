// SPDX-License-Identifier: Apache-2.0
// Makes the step schedule: one list with all loads, computations and stores of a step, in order.
// The decoder executes the list; the cost model prices it and traces show it.
//
// A step goes layer by layer, and inside a layer micro-batch by micro-batch (FlexGen, Algorithm 1).
// A load that runs ahead of its use stands in the list before the computation that hides it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/lowered_layer.h"
#include "plan/streaming_schedule.h"

namespace spillway {

enum class EventKind : uint8_t {
  kLoad,     // a copy to the device begins
  kWait,     // later computations find it on the device
  kRun,      // the device computes
  kStart,    // work begins beside what the device computes next
  kJoin,     // later computations find that work done
  kStore,    // is copied back to the memory in which it lives
  kRelease,  // its memory on the device is free
};

// The subject of an event.
enum class EventSubject : uint8_t {
  // `op` of `layer`. Without a group it computes all that is on the device. With a `group` it
  // computes the rows of that weight segment, or attention for the sequences whose KV was loaded as
  // that group.
  kOp,
  kWeights,  // the segment `group`, numbered in the order of use
  kKv,       // KV pages of `group` of the batch's swapped sequences, in `layer`
  // All KV of a swapped layer, which is in host memory except for the layer's part of a step
  // (kv/layer_table.h). A load without a batch, at the start of a step, loads what was not loaded
  // during the step before.
  kLayerKv,
  kHiddenStates,  // the residual stream of `batch`
  kCpu,           // the CPU's rows of a linear op, or its sequences of an attention op
  kPartitions,    // attention to sequences whose KV is in several memories, merged by softmax state
  // The residual stream of `batch` between two parts of a model: received from the part before this
  // one (load), or passed to the next part (store), which also releases it. The device waits for
  // both.
  kHandOver,
};

struct StepEvent {
  EventKind kind = EventKind::kRun;
  EventSubject subject = EventSubject::kOp;
  int layer = -1;  // kEmbeddingList, a layer's number, or layer_count() for the head's list
  // Index in that list as devices run it (LoweredLayer::ops). -1 in an embedding list without ops:
  // only the angles of its ropes are computed.
  int op = -1;
  int batch = -1;
  int group = -1;
  bool operator==(const StepEvent&) const = default;
};

// Returns the name that a trace shows, such as "load weights", "qkv" or "qkv on the CPU".
std::string event_name(const LoweredModel& model, const StepEvent& event);

// Returns whether the host decides what such an event does only when the step reaches it, so that a
// recorded graph must end before it. The cost model uses its expected time.
bool is_decided_in_step(const StepEvent& event);

// A range of a step's events: [begin, ops) are decided by the host when the step reaches them, and
// [ops, end) after them can be recorded by a device as one graph.
struct GraphSegment {
  size_t begin = 0, ops = 0, end = 0;
  bool operator==(const GraphSegment&) const = default;
};
std::vector<GraphSegment> graph_segments(std::span<const StepEvent> events);

// The properties of a micro-batch that decide the order of a step's events.
struct BatchShape {
  bool hidden_states_offloaded = false;  // its hidden states are offloaded between layers
  bool on_device = true;                 // some of its rows have their KV on the device
  bool on_host = false;                  // the CPU attends for some of its rows
  // The groups of rows whose KV pages are copied to the device. True for a group that reads what
  // the group before it has written, and so can only be loaded after that was stored.
  std::vector<bool> swaps = {};
  bool partitioned = false;  // some rows attend to their KV in partitions, wherever it is
  bool logits = false;       // some of its rows need logits
  bool operator==(const BatchShape&) const = default;
};
// A linear op with weights whose home is not the device.
struct StreamedShape {
  int layer = 0;  // layer_count() for the head
  int op = 0;
  int segments = 1;     // weight segments that are copied to the device
  bool on_cpu = false;  // the CPU multiplies some of its rows
  bool operator==(const StreamedShape&) const = default;
};
struct StepShape {
  std::shared_ptr<const LoweredModel> model = {};
  std::vector<StreamedShape> streamed = {};  // in the order of their use
  // By weight segment: its slot group, numbered 0, 1, ... Segments of one slot group are in the
  // same slot at the same time.
  std::vector<int> slot_groups = {};
  int weight_slots = 2;             // all are filled before the first step
  int segments_read_ahead = 0;      // weight segments read from disk before a slot for them is free
  int kv_buffers = 2;               // groups whose pages are on the device at the same time
  int swapped_layers = 0;           // layers whose KV is swapped (choose_swapped_layers)
  std::vector<int> swappable = {};  // layers that may be swapped; empty: all
  int layer_buffers = 0;            // device buffers that the swapped layers share
  bool overlap = true;              // false: everything is loaded immediately before its use
  std::vector<BatchShape> batches = {};
  bool operator==(const StepShape&) const = default;

  int layers() const { return model->layer_count(); }
};

StreamedShape streamed_shape(const StreamedLinear& linear);

// Returns the events of a step.
//
// A part of a model (model/model_part.h) without an embedding begins its step by receiving hidden
// states, and one without a head ends it by passing them on.
//
// With overlap, weight segments of the first layers, and KV of the first swapped layers, are loaded
// for the next step while the last layers of this one compute. With several batches, all segments
// of a layer must fit into the slots.
std::vector<StepEvent> schedule_step(const StepShape& shape);

}  // namespace spillway
