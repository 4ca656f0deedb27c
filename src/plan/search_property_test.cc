// SPDX-License-Identifier: Apache-2.0
// Checks properties of every plan that a search finds, over random models, machines, memories and
// requests: it is never slower than a point of its own frontier, than the plan for any other number
// of concurrent sequences, than greedy placement or than the plans of a grid.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

#include "plan/frontier.h"
#include "plan/greedy_placement.h"
#include "plan/machine_traits.h"

namespace spillway {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kShards = 10, kCasesOfAShard = 50, kGridsOfAShard = 2;
// The search ignores gains below a two thousandth (search.cc).
constexpr double kSame = 1.0005;

class Drawing {
 public:
  explicit Drawing(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t bound) { return random_() % bound; }
  template <class T>
  const T& one_of(const std::vector<T>& all) {
    return all[below(all.size())];
  }
  // Draws a number whose logarithm is evenly distributed.
  double between(double low, double high) {
    const double share = static_cast<double>(below(1000)) / 999;
    return low * std::pow(high / low, share);
  }

 private:
  std::mt19937_64 random_;
};

struct Case {
  Model model;
  Hardware hardware;
  Budgets budgets;
  DeviceTraits traits;
  Workload workload;
  RunSize size;
  std::string text;

  SearchRequest request() const {
    return {.hardware = hardware,
            .model = model,
            .traits = traits,
            .workload = workload,
            .budgets = budgets,
            .size = size};
  }
};

Case draw(uint64_t number) {
  Drawing random(number);
  Case c;
  const std::string model =
      random.one_of<std::string>({"opt-1.3b", "opt-2.7b", "opt-6.7b", "opt-13b", "opt-30b",
                                  "opt-175b", "llama-2-7b", "llama-2-7b:q4_0", "llama-2-13b:q4_0",
                                  "llama-3-8b:q4_0", "llama-2-70b:q4_0", "llama-3.2-1b:q4_0"});
  c.model = describe_dummy_model(model);
  c.hardware = read_hardware(random.one_of(shipped_hardware()));
  const auto weights = static_cast<double>(c.model.weight_bytes());
  const auto draw_bytes = [&](double least, double most, uint64_t there) {
    const auto bytes = static_cast<uint64_t>(random.between(least, most) * weights);
    return std::min(std::max(bytes, 256 * kMiB), there);
  };
  if (c.hardware.has_device())
    c.budgets.device = draw_bytes(0.02, 1.2, c.hardware.gpu->memory_bytes);
  const bool has_disk = random.below(2) == 0;
  if (has_disk) c.budgets.disk = static_cast<uint64_t>(2 * weights);
  // In most cases the model fits somewhere, with little room to spare.
  c.budgets.host = draw_bytes(has_disk ? 0.05 : 0.9, 3, 2 * c.hardware.host.memory_bytes);
  c.budgets.host_is_limited = random.below(2) == 0;
  c.traits = traits_of_machine(c.hardware, c.budgets);
  const auto tokens = [&](double most) { return static_cast<int64_t>(random.between(8, most)); };
  const auto requests = static_cast<int64_t>(random.between(1, random.below(8) == 0 ? 100 : 5));
  c.workload.groups = {{requests, tokens(1500), tokens(200)}};
  if (random.below(4) == 0)
    c.workload.groups.push_back({requests / 2 + 1, tokens(1500), tokens(200)});
  c.size.micro_tokens = usual_chunk(c.hardware.gpu.has_value(), c.workload.longest());
  c.text = fmt::format("case {}: {} on {}, {} MiB, {} MiB, {} MiB{}", number, model,
                       c.hardware.name, c.budgets.device / kMiB, c.budgets.host / kMiB,
                       c.budgets.disk / kMiB, c.budgets.host_is_limited ? ", limited" : "");
  for (const RequestGroup& group : c.workload.groups)
    c.text += fmt::format(", {} x {} + {}", group.count, group.prompt, group.generate);
  return c;
}

class SearchPropertyTest : public testing::TestWithParam<int> {};

TEST_P(SearchPropertyTest, NothingElseIsFaster) {
  int found = 0;
  for (int i = 0; i < kCasesOfAShard; ++i) {
    const auto number = static_cast<uint64_t>(GetParam() * kCasesOfAShard + i);
    const Case c = draw(number);
    SCOPED_TRACE(c.text);
    const SearchRequest request = c.request();
    PlanSearch search(request);
    const int64_t requests = c.workload.requests();
    const auto plans = search.find(1, requests);
    const double best = plans.empty() ? 1e300 : plans[0].predicted.total_s();
    found += plans.empty() ? 0 : 1;
    for (const FrontierPoint& point : find_frontier(request, search)) {
      EXPECT_LE(best, point.found.predicted.total_s() * kSame)
          << "the frontier's " << point.found.size.sequences;
    }
    Drawing random(number + 1000);
    for (int trial = 0; trial < 2; ++trial) {
      const auto most = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(requests)));
      const auto fewer = search.find(1, most);
      if (fewer.empty()) continue;
      // If there are many numbers of sequences, not all of them are tried.
      EXPECT_LE(best, fewer[0].predicted.total_s() * (requests > 32 ? 1.01 : kSame))
          << "at most " << most << ", " << fewer[0].size.sequences;
    }
    RunSize size = c.size;
    size.tokens = c.workload.longest();
    for (size.sequences = requests; size.sequences > 0; size.sequences /= 2) {
      const auto plan = try_place_greedily(c.model, size, c.traits, c.budgets);
      if (!plan) continue;
      const Footprint needs = footprint(c.model, *plan, size, c.traits);
      if (!fit_of(needs, !c.traits.host_visible, c.budgets).fits()) continue;
      EXPECT_LE(best,
                predict(c.hardware, c.model, *plan, needs, size, c.workload).total_s() * kSame)
          << "greedy placement of " << size.sequences;
      break;
    }
  }
  EXPECT_GT(found, kCasesOfAShard / 2);
}

// Prices every plan of a coarse grid for a few requests, and calls `see` with its total time.
template <class See>
void price_grid(const Case& c, See see) {
  const bool has_device = c.hardware.has_device();
  PlacedWeights weights(c.model, c.traits);
  PricedSteps steps(c.hardware, weights);
  Predictor predictor(steps, c.workload);
  const MemoryCheck memory(weights, c.traits, c.budgets);
  std::vector<TierShares> shares;
  for (int on_device = 0; on_device <= 10; ++on_device) {
    for (int in_host = 0; in_host <= 10 - on_device; in_host += 2) {
      const double device = 0.1 * on_device, host = 0.1 * in_host;
      if (has_device || on_device == 0) shares.push_back({device, host, 1 - device - host});
    }
  }
  RunSize size = c.size;
  size.tokens = c.workload.longest();
  for (size.sequences = 1; size.sequences <= c.workload.requests(); ++size.sequences) {
    for (const TierShares& of_weights : shares) {
      for (const TierShares& of_kv : {TierShares{1, 0, 0}, TierShares{0, 1, 0}}) {
        for (const AttentionPlace place : {AttentionPlace::kCpu, AttentionPlace::kGpu}) {
          for (const Tier embeddings : {Tier::kDevice, Tier::kHost}) {
            Plan plan;
            plan.weights = of_weights;
            plan.embeddings = embeddings;
            plan.kv = of_kv;
            plan.attention = place;
            const Footprint needs = memory.needs(plan, size);
            if (!memory.fit(needs).fits()) continue;
            see(predictor.predict(plan, needs, size, PriceBy::kSimulator).total_s());
            if (!has_device) break;
          }
        }
      }
    }
  }
}

TEST_P(SearchPropertyTest, NoPlanOfAGridIsFaster) {
  int priced = 0;
  for (int i = 0; i < kGridsOfAShard; ++i) {
    Case c = draw(static_cast<uint64_t>(5000 + GetParam() * kGridsOfAShard + i));
    c.workload.groups.resize(1);
    c.workload.groups[0].count = 1 + i % 3;
    SCOPED_TRACE(c.text);
    const auto plans = search_plans(c.request());
    const double best = plans.empty() ? 1e300 : plans[0].predicted.total_s();
    price_grid(c, [&](double seconds) {
      ++priced;
      EXPECT_GE(seconds, 0.98 * best);
    });
  }
  EXPECT_GT(priced, 0);
}

// A number of concurrent sequences by hand (--batch) is not faster than the number that was found.
TEST_P(SearchPropertyTest, NoBatchByHandIsFaster) {
  for (int i = 0; i < kGridsOfAShard; ++i) {
    const Case c = draw(static_cast<uint64_t>(7000 + GetParam() * kGridsOfAShard + i));
    SCOPED_TRACE(c.text);
    const SearchRequest request = c.request();
    PlanSearch search(request);
    const auto plans = search.find(1, c.workload.requests());
    const double best = plans.empty() ? 1e300 : plans[0].predicted.total_s();
    for (int64_t n = 1; n <= std::min<int64_t>(c.workload.requests(), 24); ++n) {
      const auto by_hand = search.find(n, n);
      if (!by_hand.empty()) {
        EXPECT_GE(by_hand[0].predicted.total_s(), 0.98 * best) << "--batch " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, SearchPropertyTest, testing::Range(0, kShards));

}  // namespace
}  // namespace spillway
