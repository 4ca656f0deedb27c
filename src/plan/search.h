// SPDX-License-Identifier: Apache-2.0
// Finds the fastest plan by the cost model. Numbers of concurrent sequences and their division into
// micro-batches are enumerated. The shares of weights, KV and hidden states in each memory come
// from a linear program (FlexGen, 4.3), are rounded to what the runtime has and checked against the
// footprint. The best few are simulated.
//
// Each number of sequences is searched separately, with the settings with which it fits (embeddings
// on the device or in host memory, prompt chunks), so that the plan for many sequences is never
// slower than the plan for fewer of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/greedy_placement.h"
#include "plan/search_request.h"

namespace spillway {

// A plan's estimated time must be below this fraction of another one's to replace it.
inline constexpr double kBetter = 0.9995;

// Returns at most `most` plans, the best first; none if nothing fits.
std::vector<FoundPlan> search_plans(const SearchRequest& request, int most = 1);

// Searches for several ranges of concurrent sequences and keeps what it found for each number.
// Keeps a reference to the request, which must outlive it. Not thread-safe.
class PlanSearch {
 public:
  explicit PlanSearch(const SearchRequest& request);
  ~PlanSearch();
  PlanSearch(const PlanSearch&) = delete;
  PlanSearch& operator=(const PlanSearch&) = delete;

  // Like search_plans(), with this range of sequences instead of the request's.
  std::vector<FoundPlan> find(int64_t least_sequences, int64_t most_sequences, int most = 1);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway
