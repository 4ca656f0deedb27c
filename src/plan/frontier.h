// SPDX-License-Identifier: Apache-2.0
// The frontier of latency and throughput (FlexGen, figure 1): what more concurrent sequences buy.
#pragma once

#include <optional>
#include <vector>

#include "plan/search.h"

namespace spillway {

struct FrontierPoint {
  FoundPlan found;
  // Whether no other point is both faster and sooner.
  bool best = true;
};

// The best plan for each number of concurrent sequences that is tried: powers of two up to the
// requests. By growing latency; those without a plan are left out.
std::vector<FrontierPoint> find_frontier(const SearchRequest& request);
// With a search for the same request that has found other plans already.
std::vector<FrontierPoint> find_frontier(const SearchRequest& request, PlanSearch& search);

// The best plan for as many concurrent requests like the workload's first one as pay: their number
// is doubled while that makes a tenth more tokens a second. Nothing where one does not fit.
std::optional<FoundPlan> try_as_many_as_pay(const SearchRequest& request);

}  // namespace spillway
