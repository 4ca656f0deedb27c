// SPDX-License-Identifier: Apache-2.0
#include "plan/frontier.h"

#include <algorithm>
#include <utility>

namespace spillway {

std::vector<FrontierPoint> find_frontier(const SearchRequest& request) {
  PlanSearch search(request);
  return find_frontier(request, search);
}

std::vector<FrontierPoint> find_frontier(const SearchRequest& request, PlanSearch& search) {
  std::vector<FrontierPoint> points;
  const int64_t requests = request.workload.requests();
  for (int64_t sequences = 1;; sequences = std::min(2 * sequences, requests)) {
    const auto found = search.find(sequences, sequences);
    if (!found.empty()) points.push_back({found.front(), true});
    if (sequences == requests) break;
  }
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) {
    return a.found.predicted.latency_s < b.found.predicted.latency_s;
  });
  double fastest = 0;
  for (FrontierPoint& point : points) {
    const double rate = point.found.predicted.generated_tokens_per_s;
    point.best = rate > fastest;
    fastest = std::max(fastest, rate);
  }
  return points;
}

std::optional<FoundPlan> try_as_many_as_pay(const SearchRequest& request) {
  constexpr int64_t kMost = 4096;
  constexpr double kPays = 1.1;
  constexpr int kPatience = 2;  // doublings without a gain
  std::optional<FoundPlan> best;
  SearchRequest many = request;
  PlacedWeights weights(request.model, request.traits);
  PricedSteps steps(request.hardware, weights);
  if (!many.steps) many.steps = &steps;
  many.workload.groups.resize(1);
  int without_gain = 0;
  for (int64_t count = 1; count <= kMost && without_gain < kPatience; count *= 2) {
    many.workload.groups[0].count = many.most_sequences = many.least_sequences = count;
    auto found = search_plans(many);
    if (found.empty()) break;
    const auto rate = [](const FoundPlan& of) { return of.predicted.generated_tokens_per_s; };
    if (best && rate(found[0]) < kPays * rate(*best)) {
      ++without_gain;
      continue;
    }
    best = std::move(found[0]);
    without_gain = 0;
  }
  return best;
}

}  // namespace spillway
