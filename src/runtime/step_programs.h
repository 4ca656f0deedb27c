// SPDX-License-Identifier: Apache-2.0
// Which steps a device may replay for each other: numbers for StepBatch::program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/generation.h"
#include "tensor/kv_shape.h"

namespace spillway {

// Everything besides the batch that the ops of a step are called with. Where KV lies is not among
// it (StepBatch::kv): a layer may move, and another cache of the same shape may be used.
struct StepArguments {
  uint64_t weights = 0, activations = 0;  // generations of those who own them
  KvShapes kv = {};
  int kv_turning = 0;  // layers whose KV takes turns: the step is cut into parts there
  float attention_topk = 0;
  bool operator==(const StepArguments&) const = default;
};

// Gives each combination a number that no other has, in whichever decoder: a recorded step is then
// never replayed where something else is. Combinations are compared, not hashed. The last few are
// remembered, for who goes back and forth between two; one that was forgotten gets a new number.
class StepPrograms {
 public:
  uint64_t number_of(const StepArguments& arguments) {
    auto found = std::ranges::find(known_, arguments, &Known::arguments);
    if (found == known_.end()) {
      if (known_.size() == kMostKnown) known_.erase(known_.begin());
      known_.push_back({arguments, Generation::fresh()});
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
  std::vector<Known> known_;  // the last used at the end
};

}  // namespace spillway
