// SPDX-License-Identifier: Apache-2.0
// The frontier of latency and throughput (FlexGen, figure 1): what more sequences at once buy.
#pragma once

#include <string>
#include <vector>

#include "plan/search.h"

namespace spillway {

struct FrontierPoint {
  FoundPlan found;
  // Whether no other point is both faster and sooner.
  bool best = true;
};

// The best plan for each number of sequences at once that is tried: powers of two up to the
// requests. By growing latency; those without a plan are left out.
std::vector<FrontierPoint> find_frontier(const SearchRequest& request);

// As a drawing: latency of a block to the right, generated tokens per second upwards, both by their
// logarithms.
std::string frontier_svg(const std::vector<FrontierPoint>& points, const std::string& title);

}  // namespace spillway
