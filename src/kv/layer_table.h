// SPDX-License-Identifier: Apache-2.0
// Which layers' KV is on the device, where room is for fewer layers than there are (Pie, 3.1-3.2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/turn_sizes.h"

namespace spillway {

enum class LayerState : uint8_t {
  kStays,   // on the device, always
  kAway,    // in host memory alone
  kComing,  // a buffer is its own, and bytes are on their way: not to be read yet
  kHere,    // confirmed: ops called from now on find it in its buffer
};

// The device's memory for KV in equal buffers, and the layers in them. Most layers have a buffer of
// their own; the others share a few, in the order of the step: when one has been attended to, its
// buffer goes to the next that has none. Each comes once a step, the fewest copies that there can
// be (the paper's queue, which swaps whenever the link is free, makes more of them), and which
// buffer it comes to is known when the step begins.
//
// Changes are in two phases: a layer gets a buffer (begin_load), and is there when its copy is
// confirmed. Ids and states only: tested without any memory. Throws kInternal where a buffer would
// have two layers or a layer would be read that is not there.
class LayerTable {
 public:
  explicit LayerTable(const TurnSizes& sizes);

  const TurnSizes& sizes() const { return sizes_; }
  int turning() const { return static_cast<int>(turns_.size()); }
  int buffers() const { return sizes_.buffers(turning()); }
  int32_t blocks() const { return sizes_.blocks_with(turning()); }
  LayerState state(int layer) const { return of(layer).state; }
  bool takes_turns(int layer) const { return of(layer).host >= 0; }
  // Its buffer on the device; of those that take turns: the one they are in, or come to.
  int device_buffer(int layer) const { return of(layer).device; }
  // Before a step's first layer is attended to: the one in which it will be in that step.
  int device_buffer_in_step(int layer) const;
  // In host memory, of those that take turns; else -1.
  int host_buffer(int layer) const { return of(layer).host; }
  // In the order of a step.
  std::span<const int> turns() const { return turns_; }

  // The layer whose turn it is to come, where a buffer is free for it; else -1.
  int next_to_load() const;
  void begin_load(int layer);
  void confirm(int layer);
  // It has been attended to, and what it was given is on its way to host memory.
  void leave(int layer);
  // Those that take turns are in host memory, all of them: what was on its way is of no use.
  void reset();

  // What a new cut of the same memory takes. Nothing is coming or here (reset()).
  struct Copy {
    int layer = 0;
    int from = 0, to = 0;  // buffers
  };
  struct Recut {
    int32_t blocks_before = 0, blocks = 0;
    // First, one after the other: a layer that stays from now on comes from its host buffer to the
    // free buffer, and one that takes turns from now on goes to that host buffer and leaves its
    // own.
    struct Exchange {
      Copy in = {}, out = {};
    };
    std::vector<Exchange> exchanges = {};
    std::vector<Copy> outs = {};     // device to host, all of them before the moves
    std::vector<Copy> closing = {};  // inside the device, between buffers of the old size
    std::vector<Copy> moves = {};    // from buffers of the old size to the new: in this order, each
                                     // reads what none before it wrote
    std::vector<Copy> ins = {};      // host to device, after the moves
  };
  // Layers that take turns: `turning` of them from now on, 0 or a number that gains room.
  Recut recut(int turning);

 private:
  struct Entry {
    LayerState state = LayerState::kStays;
    int device = -1;
    int host = -1;
  };
  const Entry& of(int layer) const { return entries_.at(static_cast<size_t>(layer)); }
  Entry& of(int layer) { return entries_.at(static_cast<size_t>(layer)); }
  int turn_of(int64_t count) const {
    return turns_[static_cast<size_t>(count % static_cast<int64_t>(turns_.size()))];
  }

  TurnSizes sizes_;
  std::vector<Entry> entries_;  // [layer]
  std::vector<int> turns_;
  std::vector<int> shared_;            // buffers of those that take turns
  std::vector<int> free_host_;         // buffers
  int64_t begun_ = 0, confirmed_ = 0;  // loads, since the last reset
  int64_t left_ = 0;
};

}  // namespace spillway
