// SPDX-License-Identifier: Apache-2.0
// Caches the prices of steps of one model on one machine: plans of a search, and of several
// searches with other budgets or requests, share most of their steps.
#pragma once

#include <string>
#include <unordered_map>

#include "plan/placed_weights.h"
#include "plan/step_prices.h"

namespace spillway {

// Keeps references to the hardware and the weights, which must outlive it. Not thread-safe.
class PricedSteps {
 public:
  struct Priced {
    StepEstimate estimate;
    double cpu_attention = 1;  // StepPrices::cpu_attention()
  };
  PricedSteps(const Hardware& hardware, PlacedWeights& weights)
      : hardware_(hardware), weights_(weights) {}

  const Hardware& hardware() const { return hardware_; }
  PlacedWeights& weights() const { return weights_; }
  // Returns the price of one step under the plan, simulated or by sums over its events. The
  // reference is valid until the next call.
  enum class Method : uint8_t { kSums, kSimulated };
  const Priced& price(const Plan& plan, const RunLayout& layout, const StepSize& size,
                      Method method);

 private:
  // The cache is emptied when it has this number of prices, so that a long refusal does not fill
  // memory.
  static constexpr size_t kMost = 200'000;

  const Hardware& hardware_;
  PlacedWeights& weights_;
  std::unordered_map<std::string, Priced> steps_;
};

}  // namespace spillway
