// SPDX-License-Identifier: Apache-2.0
// Finds the plan that is the fastest by the cost model: numbers of concurrent sequences and how
// they are cut into micro-batches are enumerated, shares of memories come from a linear program
// (FlexGen, 4.3), are rounded to what the runtime has and held to the footprint; the best few are
// simulated.
//
// Each number of sequences is searched by itself, with the settings that it fits with (embeddings
// on the device or in host memory, chunks of prompts), so that the plan for many is never slower
// than the plan for some of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/fill.h"
#include "plan/search_request.h"

namespace spillway {

// The best first, at most `most`; empty where nothing fits.
std::vector<FoundPlan> search_plans(const SearchRequest& request, int most = 1);

// Searches for several numbers of concurrent sequences that keep what they found of each. Refers to
// the request, which must outlive it. Not thread-safe.
class PlanSearch {
 public:
  explicit PlanSearch(const SearchRequest& request);
  ~PlanSearch();
  PlanSearch(const PlanSearch&) = delete;
  PlanSearch& operator=(const PlanSearch&) = delete;

  // As search_plans(), with these instead of the request's own.
  std::vector<FoundPlan> find(int64_t least_sequences, int64_t most_sequences, int most = 1);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway
