// SPDX-License-Identifier: Apache-2.0
// Caches what depends only on the homes of a model's weights, the memories in which they live, for
// the next plan with the same homes: a search tries thousands of plans that differ in little else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/tier.h"
#include "model/model.h"
#include "plan/activation_sizes.h"
#include "plan/device_traits.h"
#include "plan/plan.h"
#include "plan/step_weights.h"
#include "plan/streaming_schedule.h"
#include "plan/weight_homes.h"

namespace spillway {

// The sizes of everything that a run needs for streamed weights.
struct StreamingNeeds {
  int slots = 0;
  uint64_t slot_bytes = 0;
  int stages = 0;          // staging buffers for weights read from disk
  uint64_t disk_rows = 0;  // bytes of a buffer into which the CPU's rows are read from disk
  // The CPU's rows for each of its shares of linear ops, with the largest token count of that
  // share, not limited by a run.
  std::vector<CpuRows> cpu_rows = {};
};

// Serves one model on one kind of device. Keeps a reference to the model, which must outlive it.
// References that it returns are valid for its lifetime. Not thread-safe.
class PlacedWeights {
 public:
  // The sizes of memories in `traits` do not matter here.
  PlacedWeights(const Model& model, const DeviceTraits& traits);

  const Model& model() const { return model_; }
  // Scratch bytes of a kernel that expands a quantized matrix before it multiplies: for the largest
  // matrix of the layers, and for the largest outside them.
  struct Expanded {
    int64_t layer_bytes = 0, outside_bytes = 0;
  };
  const Expanded& expanded() const { return expanded_; }
  const LookedUpRows& embedding_rows() const { return embedding_rows_; }  // with `rows` 0
  // The home of each weight by a plan, as weight_homes() computes it. Plans whose shares differ a
  // little have the same homes.
  struct Homes {
    int number = 0;  // differs between different homes
    std::vector<Tier> of;
    WeightBytes mapped, loaded;  // with and without `may_map` of weight_bytes()
  };
  const Homes& homes(const Plan& plan);
  const WeightBytes& bytes(const Plan& plan, bool may_map) {
    return may_map ? homes(plan).mapped : homes(plan).loaded;
  }
  const StreamingNeeds& streaming(const Plan& plan, SlotContent slots);
  std::shared_ptr<const StepWeights> of_step(const Plan& plan, const StreamSplit& cut);

 private:
  const Model& model_;
  const DeviceTraits traits_;
  Expanded expanded_;
  LookedUpRows embedding_rows_;
  // Caches by keys of everything that decides their values. `steps_`, whose values are large, is
  // emptied when it has kMostSteps entries.
  static constexpr size_t kMostSteps = 256;
  std::unordered_map<std::string, Homes> homes_;  // the key is the homes themselves
  std::unordered_map<std::string, const Homes*> homes_by_plan_;
  std::unordered_map<std::string, StreamingNeeds> streaming_;
  std::unordered_map<std::string, std::shared_ptr<const StepWeights>> steps_;
};

}  // namespace spillway
