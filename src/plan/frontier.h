// SPDX-License-Identifier: Apache-2.0
// Finds the frontier of latency and throughput (FlexGen, figure 1): what more concurrent sequences
// gain, and what they cost.
#pragma once

#include <optional>
#include <vector>

#include "plan/search.h"

namespace spillway {

struct FrontierPoint {
  FoundPlan found;
  // True if no other point has both a higher throughput and a lower latency.
  bool best = true;
};

// Returns the best plan for each number of concurrent sequences that is tried, which are the powers
// of two up to the requests and the requests themselves. Points are in the order of their latency;
// numbers for which no plan fits are left out.
std::vector<FrontierPoint> find_frontier(const SearchRequest& request);
// The same with a search for this request that has already found other plans.
std::vector<FrontierPoint> find_frontier(const SearchRequest& request, PlanSearch& search);

// Doubles the number of concurrent requests, all like the workload's first one, until two doublings
// in a row do not give a tenth more tokens per second than the best. Returns the best plan found,
// or nullopt if not even one request fits.
std::optional<FoundPlan> try_as_many_as_pay(const SearchRequest& request);

}  // namespace spillway
