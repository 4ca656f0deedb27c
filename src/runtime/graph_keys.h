// SPDX-License-Identifier: Apache-2.0
// Graph keys (StepBatch::graph_key): steps with the same key may be replayed for each other by a
// device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/address_epoch.h"
#include "tensor/kv_shape.h"

namespace spillway {

// Everything besides the batch that the ops of a step are called with. Addresses of KV are not
// included (StepBatch::kv): a layer may move, and another cache of the same shape may be used.
struct StepArguments {
  uint64_t weights = 0, activations = 0;  // address epochs of their owners
  KvShapes kv = {};
  // Layers whose KV is loaded in each step; the step is divided into graph segments at them.
  int swapped_layers = 0;
  float attention_topk = 0;
  bool operator==(const StepArguments&) const = default;
};

// Gives each combination of arguments a number that no other combination has, in any decoder, so
// that a recorded step is never replayed with other arguments. Combinations are compared, not
// hashed. The last kMostKnown are remembered, for callers that alternate between two; a forgotten
// one gets a new number.
class GraphKeys {
 public:
  uint64_t number_of(const StepArguments& arguments) {
    auto found = std::ranges::find(known_, arguments, &Known::arguments);
    if (found == known_.end()) {
      if (known_.size() == kMostKnown) known_.erase(known_.begin());
      known_.push_back({arguments, AddressEpoch::fresh()});
    } else {
      std::rotate(found, found + 1, known_.end());
    }
    return known_.back().number;
  }

  static constexpr size_t kMostKnown = 8;

 private:
  struct Known {
    StepArguments arguments;
    uint64_t number;
  };
  std::vector<Known> known_;  // most recently used last
};

}  // namespace spillway
