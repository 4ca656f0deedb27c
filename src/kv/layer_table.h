// SPDX-License-Identifier: Apache-2.0
// Tracks which layers' KV is on the device, if there is room for fewer layers than there are (Pie,
// 3.1-3.2). The KV of swapped layers lives in host memory and is on the device only for their part
// of a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/layer_swap_sizes.h"

namespace spillway {

enum class LayerState : uint8_t {
  kNeverSwapped,  // always on the device
  kSwappedOut,    // swapped out: in host memory alone
  kLoading,       // loading: it has a buffer, but its bytes may not be read yet
  kResident,      // resident: ops queued from now on find it in its buffer
};

// Divides the device's memory for KV into equal buffers, and assigns layers to them. Most layers
// have a buffer of their own; the swapped layers share a few, in the order of the step: when a
// layer has been attended to, its buffer goes to the next one that has none. Each is loaded once a
// step, which is the fewest copies possible (the paper's queue, which swaps whenever the link is
// free, makes more), and its buffer is known when the step begins.
//
// Changes have two phases: a layer gets a buffer (begin_load), and is resident when its copy is
// confirmed. The table has only ids and states, and is tested without any memory. Throws kInternal
// if a buffer would have two layers, or a layer that is not resident would be read.
class LayerTable {
 public:
  explicit LayerTable(const LayerSwapSizes& sizes);

  const LayerSwapSizes& sizes() const { return sizes_; }
  int swapped_count() const { return static_cast<int>(swapped_.size()); }
  int buffers() const { return sizes_.buffers(swapped_count()); }
  int32_t blocks() const { return sizes_.blocks_with(swapped_count()); }
  LayerState state(int layer) const { return of(layer).state; }
  bool is_swapped(int layer) const { return of(layer).host >= 0; }
  // The layer's buffer on the device; of a swapped layer, the one it is in or is being loaded to.
  int device_buffer(int layer) const { return of(layer).device; }
  // The buffer in which the layer will be in a step. Call it before the first attention of the
  // step.
  int device_buffer_in_step(int layer) const;
  // A swapped layer's buffer in host memory; -1 for other layers.
  int host_buffer(int layer) const { return of(layer).host; }
  // The swapped layers, in the order of a step.
  std::span<const int> swapped_layers() const { return swapped_; }

  // The layer to load next, if a buffer is free for it; else -1.
  int next_to_load() const;
  void begin_load(int layer);
  void confirm(int layer);
  // The layer has been attended to, and its new KV is on its way to host memory: its buffer
  // becomes free.
  void leave(int layer);
  // Marks all swapped layers as swapped out; loads in flight are of no use.
  void reset();

  // The copies that a new division of the memory takes. It requires that no layer is loading or
  // resident in a shared buffer (reset()).
  struct Copy {
    int layer = 0;
    int from = 0, to = 0;  // buffers
  };
  struct Recut {
    int32_t blocks_before = 0, blocks = 0;
    // These come first, one after the other: a layer that stops being swapped is copied from its
    // host buffer to the free device buffer, and one that begins to be swapped goes to that host
    // buffer and leaves its own.
    struct Exchange {
      Copy in = {}, out = {};
    };
    std::vector<Exchange> exchanges = {};
    std::vector<Copy> outs = {};     // device to host, all of them before the moves
    std::vector<Copy> closing = {};  // inside the device, between buffers of the old size
    // Copies from buffers of the old size to buffers of the new size. In this order, each one reads
    // only what none before it wrote.
    std::vector<Copy> moves = {};
    std::vector<Copy> ins = {};  // host to device, after the moves
  };
  // Changes the number of swapped layers to `swapped`: 0, or a number that gains room.
  Recut recut(int swapped);

 private:
  struct Entry {
    LayerState state = LayerState::kNeverSwapped;
    int device = -1;
    int host = -1;
  };
  const Entry& of(int layer) const { return entries_.at(static_cast<size_t>(layer)); }
  Entry& of(int layer) { return entries_.at(static_cast<size_t>(layer)); }
  int swapped_layer(int64_t count) const {
    return swapped_[static_cast<size_t>(count % static_cast<int64_t>(swapped_.size()))];
  }

  LayerSwapSizes sizes_;
  std::vector<Entry> entries_;  // [layer]
  std::vector<int> swapped_;
  std::vector<int> shared_;            // buffers of swapped layers
  std::vector<int> free_host_;         // free buffers in host memory
  int64_t begun_ = 0, confirmed_ = 0;  // numbers of loads since the last reset
  int64_t left_ = 0;
};

}  // namespace spillway
