// SPDX-License-Identifier: Apache-2.0
// The scheduler under random loads, with an engine that only pretends to compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "schedule/test_engine.h"

namespace spillway::testing_schedule {
namespace {

// Everything about a load, out of its seed.
class Load {
 public:
  explicit Load(uint32_t seed) : random_(seed) {
    const int pools = 1 + below(3);
    options.pools.clear();
    for (int i = 0; i < pools; ++i) options.pools.push_back(6 + below(40));
    const int sequences = 1 + below(12);
    options.limits = {.max_step_tokens = one_in(4) ? 1 + below(8) : 8 + below(150),
                      .max_prompt_tokens = one_in(3) ? 1 + below(40) : 0,
                      .max_logit_rows = one_in(2) ? sequences + below(32) : 0,
                      .admission = {.max_sequences = sequences,
                                    .max_admissions = one_in(3) ? 1 + below(3) : 0,
                                    .stagger = one_in(4),
                                    .admit_in_blocks = one_in(4),
                                    .prompts_first = one_in(4)}};
    options.fair = one_in(2);
    options.reuses = !one_in(3);
    options.stores = options.reuses && one_in(2);
    // Prompts begin with one of a few texts, as far as they do.
    for (int i = 0; i < 3; ++i) texts_.push_back(random_tokens(200));
    most_prompt_ = 1 + below(200);
    most_answer_ = 1 + below(60);
    options.drafts = one_in(2) ? 1 + below(8) : 0;
    options.cut_back = one_in(2) ? 1 + below(kMostCutBack) : 0;
  }

  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  bool one_in(int n) { return below(n) == 0; }

  SimulatedRequest request() {
    SimulatedRequest request;
    const std::vector<int32_t>& text = texts_[static_cast<size_t>(below(3))];
    request.prompt.assign(text.begin(), text.begin() + below(most_prompt_));
    const std::vector<int32_t> own = random_tokens(1 + below(20));
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.answer = 1 + below(most_answer_);
    request.is_expected = !one_in(3);
    request.priority = below(5) - 2;
    request.client = static_cast<uint64_t>(below(4));
    request.user = static_cast<uint64_t>(below(3));
    request.scored = one_in(6);
    return request;
  }

  SimulatedOptions options;

 private:
  std::vector<int32_t> random_tokens(int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(below(5));
    return tokens;
  }

  std::mt19937 random_;
  std::vector<std::vector<int32_t>> texts_;
  int most_prompt_ = 1, most_answer_ = 1;
};

class SimulationTest : public testing::TestWithParam<uint32_t> {};

// The simulated engine checks each step; here: whatever comes and goes, in the end all have ended.
TEST_P(SimulationTest, EveryRequestEndsAndEveryStepKeepsItsPromises) {
  constexpr uint32_t kSeeds = 60;
  int64_t preemptions = 0, reused = 0, loads = 0, drafts = 0, accepted = 0, cut = 0;
  for (uint32_t seed = GetParam() * kSeeds; seed < (GetParam() + 1) * kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Load load(seed);
    SimulatedEngine engine(load.options);
    const int requests = 20 + load.below(60);
    const int eagerness = 1 + load.below(6);
    const bool cancels = load.one_in(2);
    // Not for ever: a prompt that goes a token a step would never come to its end.
    int failures = load.one_in(4) ? 20 : 0;
    for (int come = 0; come < requests || engine.outstanding() > 0;) {
      if (come < requests && load.one_in(eagerness)) {
        for (int n = 1 + load.below(6); n > 0; --n, ++come) engine.submit(load.request());
      }
      if (cancels && engine.outstanding() > 0 && load.one_in(8)) {
        const std::vector<RequestId> ids = engine.ids();
        engine.cancel(ids[static_cast<size_t>(load.below(static_cast<int>(ids.size())))]);
      }
      if (failures > 0 && load.one_in(50)) {
        engine.lose_all();
        --failures;
      }
      engine.step();
      ASSERT_LT(engine.steps(), 100'000) << "it does not come to an end";
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_FALSE(engine.step());
    EXPECT_EQ(engine.allocator().free(), engine.allocator().total());
    for (const Tier pool : engine.allocator().pools())
      EXPECT_EQ(engine.allocator().unpromised(pool), engine.allocator().total(pool));
    preemptions += engine.scheduler().preemptions();
    reused += engine.reused_tokens();
    loads += engine.loads();
    drafts += engine.drafts_computed();
    accepted += engine.drafts_accepted();
    cut += engine.tokens_cut();
  }
  EXPECT_GT(cut, 0);
  EXPECT_GT(accepted, 0);
  EXPECT_GT(drafts, accepted);
  EXPECT_GT(loads, 0);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(reused, 0);
}
INSTANTIATE_TEST_SUITE_P(Seeds, SimulationTest, testing::Range(0U, 10U));

// Somebody else always wants something, too.
TEST(SimulatedLoadTest, NobodyWaitsForEverWhereThereIsAlwaysMore) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Load load(seed);
    load.options.fair = seed % 2 == 0;
    SimulatedEngine engine(load.options);
    constexpr size_t kOutstanding = 40;  // as a server's queue has an end
    std::vector<RequestId> first;
    for (size_t n = 0; n < kOutstanding; ++n) first.push_back(engine.submit(load.request()));
    const auto some_wait = [&] {
      return std::ranges::any_of(first, [&](RequestId id) { return !engine.has_ended(id); });
    };
    while (some_wait()) {
      while (engine.outstanding() < kOutstanding) engine.submit(load.request());
      engine.step();
      ASSERT_LT(engine.steps(), 60'000) << "somebody waits for ever";
      if (testing::Test::HasFailure()) return;
    }
    for (const RequestId id : engine.ids()) engine.cancel(id);
    EXPECT_EQ(engine.allocator().free(), engine.allocator().total());
  }
}

std::vector<int32_t> tokens_of(int count, int32_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % 1000));
  return tokens;
}

// A long prompt that has begun needs many blocks at once; short requests would always fit into
// what is left. (One that is scored leaves others tokens of its steps.)
TEST(SimulatedLoadTest, ALongPromptIsNotHeldUpByShortOnesForEver) {
  SimulatedEngine engine(
      {.pools = {60},
       .limits = {
           .max_step_tokens = 300, .max_logit_rows = 160, .admission = {.max_sequences = 32}}});
  int32_t seed = 0;
  const auto submit_short = [&] {
    ++seed;
    engine.submit({.prompt = tokens_of(20, seed), .answer = 6 + seed % 23, .is_expected = false});
  };
  const RequestId large = engine.submit(
      {.prompt = tokens_of(16 * 45, 1000), .answer = 2, .is_expected = false, .scored = true});
  while (!engine.has_ended(large)) {
    while (engine.outstanding() < 24) submit_short();
    engine.step();
    ASSERT_LT(engine.steps(), 1000) << "it waits while others begin";
  }
  EXPECT_LT(engine.steps(), 60);
}

// One that outgrows its pool goes on in a larger one; those of the others are left alone.
TEST(SimulatedLoadTest, OneThatOutgrowsItsPoolGoesOnInALargerOne) {
  SimulatedEngine engine(
      {.pools = {4, 16}, .limits = {.max_step_tokens = 300, .admission = {.max_sequences = 8}}});
  engine.submit({.prompt = tokens_of(50, 1), .answer = 60, .is_expected = false});
  engine.step();
  engine.submit({.prompt = tokens_of(16 * 14, 2), .answer = 30});
  while (engine.outstanding() > 0) {
    engine.step();
    ASSERT_LT(engine.steps(), 300);
  }
  EXPECT_EQ(engine.exhausted(), 0);
  EXPECT_EQ(engine.scheduler().preemptions(), 1);
}

// Clients' requests begin within a bound that does not depend on how much another one sends.
TEST(SimulatedLoadTest, AFairOrdersWaitsAreBounded) {
  for (const int greedy : {50, 500, 2000}) {
    SimulatedEngine engine({.pools = {64},
                            .limits = {.max_step_tokens = 64, .admission = {.max_sequences = 4}},
                            .fair = true});
    int32_t seed = 0;
    const auto request = [&](uint64_t client) {
      return SimulatedRequest{.prompt = tokens_of(30, ++seed), .answer = 10, .client = client};
    };
    for (int n = 0; n < greedy; ++n) engine.submit(request(1));
    for (int i = 0; i < 20; ++i) engine.step();
    const int64_t came = engine.steps();
    const RequestId modest = engine.submit(request(2));
    while (!engine.has_ended(modest)) engine.step();
    EXPECT_LT(engine.steps() - came, 60) << greedy;
    for (const RequestId id : engine.ids()) engine.cancel(id);
  }
}

}  // namespace
}  // namespace spillway::testing_schedule
