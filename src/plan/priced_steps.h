// SPDX-License-Identifier: Apache-2.0
// The prices of steps of one model on one machine, kept for the next plan that has the same step:
// plans of a search, and of several searches with other budgets or requests, share most of them.
#pragma once

#include <string>
#include <unordered_map>

#include "plan/placed_weights.h"
#include "plan/step_prices.h"

namespace spillway {

// Refers to the hardware and the weights, which must outlive it. Not thread-safe.
class PricedSteps {
 public:
  struct Priced {
    StepEstimate estimate;
    double cpu_attention = 1;  // as StepPrices::cpu_attention() says
  };
  PricedSteps(const Hardware& hardware, PlacedWeights& weights)
      : hardware_(hardware), weights_(weights) {}

  const Hardware& hardware() const { return hardware_; }
  PlacedWeights& weights() const { return weights_; }
  // One step by the plan, simulated or by sums over its events. The result holds until the next
  // call.
  enum class Method : uint8_t { kSums, kSimulated };
  const Priced& price(const Plan& plan, const RunLayout& layout, const StepSize& size,
                      Method method);

 private:
  // All prices are forgotten when they are this many, so that a long refusal does not fill memory.
  static constexpr size_t kMost = 200'000;

  const Hardware& hardware_;
  PlacedWeights& weights_;
  std::unordered_map<std::string, Priced> steps_;
};

}  // namespace spillway
