// SPDX-License-Identifier: Apache-2.0
// Tests the scheduler under random loads, with an engine that only simulates computing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "schedule/test_engine.h"

namespace spillway::testing_schedule {
namespace {

// Everything about a load, derived from its seed.
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
    // Prompts begin with a part of one of a few texts.
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

  // Replaces the pools by one to four groups of any kind, one of them with the same pools.
  void add_groups() {
    const std::vector<int32_t> pools = options.pools;
    for (int n = 1 + below(kMostStateGroups); n > 0; --n) {
      GroupPools group{.pools = pools};
      const int kind = below(4);
      if (kind == 1) group.rule = {StateKind::kWindow, 1 + below(120)};
      if (kind == 2) group.rule = {StateKind::kChunk, 1 + below(120)};
      if (kind == 3) group.rule = {StateKind::kRecurrent};
      if (!options.groups.empty())
        for (int32_t& blocks : group.pools) blocks = 6 + below(40);
      options.groups.push_back(std::move(group));
    }
    if (one_in(3)) options.span_blocks = 4;
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

struct Happened {
  int64_t preemptions = 0, reused = 0, loads = 0, reused_windows = 0;
  int64_t drafts = 0, accepted = 0, cut = 0;
  int64_t cuts = 0, preempting_cuts = 0, uses_of_checkpoints = 0;
};

// The simulated engine checks each step; this checks that whatever comes and goes, all
// requests end.
void run_loads(uint32_t first_seed, bool has_groups, Happened& happened) {
  constexpr uint32_t kSeeds = 60;
  for (uint32_t seed = first_seed; seed < first_seed + kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Load load(seed);
    if (has_groups) load.add_groups();
    SimulatedEngine engine(load.options);
    const int requests = 20 + load.below(60);
    const int eagerness = 1 + load.below(6);
    const bool cancels = load.one_in(2);
    // Limited, because a prompt that is computed a token a step would never end.
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
    for (int group = 0; group < engine.allocator().groups(); ++group)
      for (const Tier pool : engine.allocator().pools())
        EXPECT_EQ(engine.allocator().unpromised(pool, group),
                  engine.allocator().total(pool, group));
    happened.preemptions += engine.scheduler().preemptions();
    happened.reused += engine.reused_tokens();
    happened.loads += engine.loads();
    happened.drafts += engine.drafts_computed();
    happened.accepted += engine.drafts_accepted();
    happened.cut += engine.tokens_cut();
    if (!engine.allocator().has_states()) {
      happened.cuts += engine.cuts();
      happened.preempting_cuts += engine.preempting_cuts();
    }
    happened.uses_of_checkpoints += engine.uses_of_checkpoints();
    happened.reused_windows += engine.reused_windows();
  }
  EXPECT_GT(happened.loads, 0);
  EXPECT_GT(happened.preemptions, 0);
  EXPECT_GT(happened.reused, 0);
  EXPECT_GT(happened.cut, 0);
  EXPECT_GT(happened.accepted, 0);
  EXPECT_GT(happened.drafts, happened.accepted);
}

TEST_P(SimulationTest, EveryRequestEndsAndEveryStepKeepsItsPromises) {
  Happened happened;
  run_loads(GetParam() * 60, /*has_groups=*/false, happened);
  EXPECT_EQ(happened.preempting_cuts, 0) << "a full group has all that a cut can come to";
}
TEST_P(SimulationTest, EveryRequestEndsWithGroupsOfLayersToo) {
  Happened happened;
  run_loads(GetParam() * 60, /*has_groups=*/true, happened);
  EXPECT_GT(happened.reused_windows, 0);
  EXPECT_GT(happened.uses_of_checkpoints, 0);
  EXPECT_LT(happened.preempting_cuts, happened.cuts / 10);
}
INSTANTIATE_TEST_SUITE_P(Seeds, SimulationTest, testing::Range(0U, 10U));

// Other requests always wait as well.
TEST(SimulatedLoadTest, NoRequestStarvesUnderConstantLoad) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Load load(seed);
    load.options.fair = seed % 2 == 0;
    SimulatedEngine engine(load.options);
    constexpr size_t kOutstanding = 40;  // bounded, like a server's queue
    std::vector<RequestId> first;
    for (size_t n = 0; n < kOutstanding; ++n) first.push_back(engine.submit(load.request()));
    const auto some_wait = [&] {
      return std::ranges::any_of(first, [&](RequestId id) { return !engine.has_ended(id); });
    };
    while (some_wait()) {
      while (engine.outstanding() < kOutstanding) engine.submit(load.request());
      engine.step();
      ASSERT_LT(engine.steps(), 60'000) << "a request waits for ever";
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

// A long prompt that has begun needs many blocks together; short requests would always fit into
// what is left. (A scored prompt leaves other requests tokens of its steps.)
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

// A sequence that is too long for its pool continues in a larger one; sequences there are
// not preempted.
TEST(SimulatedLoadTest, OneThatExceedsItsPoolGoesOnInALargerOne) {
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

// A model with a full group and a window of 4,096 tokens.
SimulatedOptions with_window(std::vector<int32_t> full, std::vector<int32_t> window) {
  constexpr StateRule kWindow{StateKind::kWindow, 4096};
  return {.groups = {{.pools = std::move(full)}, {kWindow, std::move(window)}},
          .limits = {.max_step_tokens = 512, .admission = {.max_sequences = 8}},
          .reuses = true};
}
constexpr int32_t kLong = 32 * 1024;
constexpr int32_t kLongBlocks = kLong / kKvBlockTokens;
const int64_t kMostOfWindow = StateRule{StateKind::kWindow, 4096}.most_blocks(kLong, 512);

TEST(SimulatedWindowTest, ALongSequenceHoldsNoMoreThanItsWindow) {
  SimulatedEngine engine(with_window({kLongBlocks}, {static_cast<int32_t>(kMostOfWindow)}));
  engine.submit({.prompt = tokens_of(kLong - 100, 1), .answer = 100});
  while (engine.outstanding() > 0) engine.step();
  EXPECT_EQ(engine.exhausted(), 0);
  EXPECT_EQ(engine.scheduler().preemptions(), 0);
  EXPECT_EQ(engine.most_held(0), kLongBlocks);
  EXPECT_LE(engine.most_held(1), kMostOfWindow);
  EXPECT_GT(engine.most_held(1), 4096 / kKvBlockTokens);
}

// The full group has room for both sequences, the window's group has not.
TEST(SimulatedWindowTest, OneIsPreemptedWhereAWindowsPoolIsFull) {
  SimulatedEngine engine(
      with_window({3 * kLongBlocks}, {static_cast<int32_t>(kMostOfWindow + 100)}));
  engine.submit({.prompt = tokens_of(2500, 1), .answer = 1200, .is_expected = false});
  engine.submit({.prompt = tokens_of(2600, 2), .answer = 1200, .is_expected = false});
  while (engine.outstanding() > 0) engine.step();
  EXPECT_EQ(engine.exhausted(), 0);
  EXPECT_GT(engine.scheduler().preemptions(), 0);
  EXPECT_LE(engine.most_held(1), kMostOfWindow);
}

// The second request finds the whole prompt of the first, of which the window's group has the end.
TEST(SimulatedWindowTest, APromptIsFoundWhereTheWindowsEndIsThere) {
  SimulatedEngine engine(with_window({3 * kLongBlocks}, {static_cast<int32_t>(kMostOfWindow * 2)}));
  std::vector<int32_t> prompt = tokens_of(kLong / 2, 1);
  engine.submit({.prompt = prompt, .answer = 4});
  while (engine.outstanding() > 0) engine.step();
  prompt.push_back(7);
  engine.submit({.prompt = prompt, .answer = 4});
  while (engine.outstanding() > 0) engine.step();
  EXPECT_EQ(engine.reused_tokens(), kLong / 2);
  EXPECT_EQ(engine.reused_windows(), kLong / 2);
}

TEST(SimulatedWindowTest, ALongSequenceSpansPoolsOfBothGroups) {
  const auto window = static_cast<int32_t>(kMostOfWindow) + 16;
  SimulatedOptions options =
      with_window({kLongBlocks / 2 + 5, kLongBlocks / 2 + 16}, {window, window});
  options.span_blocks = 16;
  SimulatedEngine engine(options);
  engine.submit({.prompt = tokens_of(kLong - 100, 1), .answer = 100});
  while (engine.outstanding() > 0) engine.step();
  EXPECT_EQ(engine.exhausted(), 0);
  EXPECT_LE(engine.most_held(1), window);
}

// A client's requests begin within a bound that does not depend on how much another one sends.
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
