// SPDX-License-Identifier: Apache-2.0
// What only the homes of a model's weights decide, kept for the next plan that has the same: a
// search asks for thousands of plans that differ in little else.
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
#include "plan/stream_order.h"
#include "plan/weight_homes.h"

namespace spillway {

// What a run needs for weights that stream.
struct StreamingNeeds {
  int slots = 0;
  uint64_t slot_bytes = 0;
  int stages = 0;                      // staging buffers for those from disk
  uint64_t disk_rows = 0;              // bytes of a buffer for the CPU's rows from disk
  std::vector<CpuRows> cpu_rows = {};  // with all tokens of their shares
};

// Of one model on one kind of device. Refers to the model, which must outlive it; what it returns
// holds until it ends. Not thread-safe.
class PlacedWeights {
 public:
  // Of `traits`, the sizes of memories do not matter here.
  PlacedWeights(const Model& model, const DeviceTraits& traits);

  const Model& model() const { return model_; }
  // What a kernel takes that expands a quantized matrix before it multiplies: of the largest one
  // of the layers, and of the largest besides.
  struct Expanded {
    int64_t layer_bytes = 0, outside_bytes = 0;
  };
  const Expanded& expanded() const { return expanded_; }
  const LookedUpRows& embedding_rows() const { return embedding_rows_; }  // of no tokens
  // Where the plan puts each weight, as weight_homes() says: plans whose shares differ by little
  // have the same homes.
  struct Homes {
    int number = 0;  // another one for other homes
    std::vector<Tier> of;
    WeightBytes mapped, loaded;  // with and without `may_map`
  };
  const Homes& homes(const Plan& plan);
  const WeightBytes& bytes(const Plan& plan, bool may_map) {
    return may_map ? homes(plan).mapped : homes(plan).loaded;
  }
  const StreamingNeeds& streaming(const Plan& plan, SlotContent slots);
  std::shared_ptr<const StepWeights> of_step(const Plan& plan, const StreamCut& cut);

 private:
  const Model& model_;
  const DeviceTraits traits_;
  Expanded expanded_;
  LookedUpRows embedding_rows_;
  // By all that decides them, as bytes. Those that are large are forgotten when they are many.
  static constexpr size_t kMostSteps = 256;
  std::unordered_map<std::string, Homes> homes_;  // by themselves
  std::unordered_map<std::string, const Homes*> homes_by_plan_;
  std::unordered_map<std::string, StreamingNeeds> streaming_;
  std::unordered_map<std::string, std::shared_ptr<const StepWeights>> steps_;
};

}  // namespace spillway
