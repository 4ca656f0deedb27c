// SPDX-License-Identifier: Apache-2.0
#include "schedule/predicted_policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "schedule/test_engine.h"

namespace spillway {
namespace {

SequenceView view(int32_t prompt, int32_t known, int64_t reserved, int exceeded = 0) {
  return {.prompt = prompt,
          .known = known,
          .reserved = reserved,
          .exceeded = exceeded,
          .blocks = blocks_for_tokens(known)};
}

TEST(ShortestPredictedFirstTest, ShortOnesPassLongOnesAFewTimes) {
  ShortestPredictedFirst order(/*patience=*/4);
  const double lengthy = order.rank(view(10, 10, 110)).value;
  int passed = 0;
  for (; passed < 1000; ++passed) {
    const double brief = order.rank(view(10, 10, 11)).value;
    if (brief > lengthy) break;
    order.began(brief);
  }
  EXPECT_GT(passed, 1);
  EXPECT_LT(passed, 1000);
}

TEST(ShortestPredictedFirstTest, APriorityHalvesOrDoublesAnAnswer) {
  ShortestPredictedFirst order;
  SequenceView first = view(10, 10, 110), last = first;
  first.priority = -1;
  last.priority = 1;
  const double usual = order.rank(view(10, 10, 110)).value;
  EXPECT_DOUBLE_EQ(order.rank(first).value, usual / 2);
  EXPECT_DOUBLE_EQ(order.rank(last).value, usual * 2);
}

TEST(PeakBlocksTest, SequencesThatEndLeaveRoomForThoseThatGrow) {
  const std::vector<SequenceView> both = {view(160, 160, 176), view(160, 160, 480)};
  const int64_t one = peak_blocks(std::span(both).last(1));
  EXPECT_NEAR(static_cast<double>(one), 30, 1);
  EXPECT_GE(peak_blocks(both), one);
  EXPECT_LE(peak_blocks(both), one + 1) << "the short one is gone when the long one is long";
  EXPECT_EQ(peak_blocks({}), 0);
}

TEST(PeakBlocksTest, WhatWasTakenAtOnceCountsOnce) {
  SequenceView sequence{.prompt = 20, .known = 20, .reserved = 160, .blocks = 10};
  EXPECT_EQ(peak_blocks({&sequence, 1}), 10);
  sequence.known = 100;
  EXPECT_EQ(peak_blocks({&sequence, 1}), 10);
  sequence.blocks = 12;  // more than it will need
  EXPECT_EQ(peak_blocks({&sequence, 1}), 12);
}

// A window holds no more than its own blocks, however long the sequence.
TEST(PeakBlocksTest, AWindowHoldsNoMoreThanItsBlocks) {
  SequenceView lengthy = view(32'768, 32'768, 33'000);
  lengthy.blocks = 0;
  lengthy.most_blocks = 290;
  EXPECT_EQ(peak_blocks({&lengthy, 1}), 290);
  SequenceView brief = view(100, 100, 200);
  brief.most_blocks = 290;
  SequenceView full = brief;
  full.most_blocks = SequenceView::kAnyBlocks;
  EXPECT_EQ(peak_blocks({&brief, 1}), peak_blocks({&full, 1}));
  for (const Packing packing : {Packing::kSum, Packing::kPeak}) {
    const auto forecast =
        PredictedAdmission({.packing = packing, .spare = 1}).forecast({}, 3 * 290);
    int begun = 0;
    while (forecast->try_add(lengthy)) ++begun;
    EXPECT_EQ(begun, 3);
  }
}

TEST(PredictedAdmissionTest, WhatIsTakenBackWasNeverAdded) {
  for (const Packing packing : {Packing::kSum, Packing::kPeak}) {
    std::mt19937 random(5);
    const PredictedAdmission admission({.packing = packing, .spare = 0.5});
    const auto one = admission.forecast({}, 300), other = admission.forecast({}, 300);
    for (int i = 0; i < 200; ++i) {
      const auto any = [&] {
        const auto prompt = 1 + static_cast<int32_t>(random() % 60);
        return view(prompt, prompt, prompt + 1 + static_cast<int64_t>(random() % 200));
      };
      if (one->try_add(any())) one->take_back();
      const SequenceView next = any();
      EXPECT_EQ(one->try_add(next), other->try_add(next));
    }
  }
}

TEST(PredictedAdmissionTest, PackingBySumNeverPromisesMoreThanThereIs) {
  const PredictedAdmission admission({.packing = Packing::kSum});
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const int64_t blocks = 20 + static_cast<int64_t>(random() % 200);
    std::vector<SequenceView> running;
    int64_t promised = 0;
    const auto any = [&] {
      const auto prompt = 1 + static_cast<int32_t>(random() % 60);
      return view(prompt, prompt + static_cast<int32_t>(random() % 20),
                  prompt + 1 + static_cast<int64_t>(random() % 200));
    };
    const auto need = [](const SequenceView& v) {
      return blocks_for_tokens(std::max<int64_t>(v.reserved, v.known + 1));
    };
    for (int i = 0; i < 3; ++i) {
      const SequenceView one = any();
      if (promised + need(one) > blocks) break;
      running.push_back(one);
      promised += need(one);
    }
    const auto forecast = admission.forecast(running, blocks);
    for (int i = 0; i < 50; ++i) {
      const SequenceView next = any();
      const bool fits = promised + need(next) <= blocks;
      EXPECT_EQ(forecast->try_add(next), fits);
      if (fits) promised += need(next);
    }
  }
}

// Each sequence that the forecast admits grows by a token a step and ends where it was
// predicted to.
TEST(PredictedAdmissionTest, PackingByPeakFitsAtEveryTime) {
  const PredictedAdmission admission({.packing = Packing::kPeak});
  std::mt19937 random(3);
  size_t by_peak = 0, by_sum = 0;
  for (int round = 0; round < 100; ++round) {
    const int64_t blocks = 50 + static_cast<int64_t>(random() % 400);
    const auto peak = admission.forecast({}, blocks);
    const auto sum = PredictedAdmission({.packing = Packing::kSum}).forecast({}, blocks);
    std::vector<SequenceView> in;
    for (int i = 0; i < 200; ++i) {
      const auto prompt = 1 + static_cast<int32_t>(random() % 60);
      const SequenceView next{.prompt = prompt,
                              .known = prompt,
                              .reserved = prompt + 1 + static_cast<int64_t>(random() % 300)};
      if (peak->try_add(next)) in.push_back(next);
      by_sum += sum->try_add(next) ? 1 : 0;
    }
    by_peak += in.size();
    for (int64_t t = 0; t < 400; ++t) {
      int64_t tokens = 0;
      for (const SequenceView& one : in)
        if (one.known + t <= one.reserved) tokens += one.known + t + kKvBlockTokens / 2;
      EXPECT_LE(tokens, blocks * kKvBlockTokens) << "at " << t;
    }
  }
  EXPECT_GT(by_peak, by_sum * 11 / 10);
}

TEST(PredictedAdmissionTest, RoomIsSparedForAnswersThatMayGrow) {
  const auto begun = [](double spare, int64_t expected) {
    const auto forecast = PredictedAdmission({.spare = spare}).forecast({}, 100);
    SequenceView next = view(16, 16, 80);
    next.expected = expected;
    int count = 0;
    while (forecast->try_add(next)) ++count;
    return count;
  };
  EXPECT_LT(begun(1, 512), begun(0.5, 512));
  EXPECT_LT(begun(0.5, 512), begun(0, 512));
  EXPECT_EQ(begun(1, 0), begun(1, 512)) << "no limit of its length is known";
  EXPECT_EQ(begun(1, 80), begun(0, 80)) << "it cannot grow";
}

TEST(PredictedAdmissionTest, AnswersWithoutPredictionCountAsMeanOnes) {
  const auto forecast = PredictedAdmission({.packing = Packing::kSum}).forecast({}, 10);
  const SequenceView unknown{.prompt = 16, .known = 16, .mean_answer = 64};
  EXPECT_TRUE(forecast->try_add(unknown));
  EXPECT_TRUE(forecast->try_add(unknown));
  EXPECT_FALSE(forecast->try_add(unknown));
}

TEST(PreemptExceededTest, WhoKeepsToItsPredictionStays) {
  const PreemptExceeded choice;
  const std::vector<SequenceView> running = {view(10, 500, 2000, 3), view(10, 50, 60),
                                             view(10, 40, 80, 1), view(10, 20, 900)};
  EXPECT_EQ(choice.choose(running), 2U);
  EXPECT_EQ(choice.choose(std::span(running).first(2)), 1U);
  EXPECT_EQ(choice.choose(std::span(running).first(1)), 0U);
  const std::vector<SequenceView> kept = {view(10, 20, 900), view(10, 20, 500), view(10, 20, 100)};
  EXPECT_EQ(choice.choose(kept), 1U);
}

}  // namespace

namespace testing_schedule {
namespace {

struct Predicted {
  Packing packing = Packing::kPeak;
  bool shortest = false;
  int sequences = 64;
  SchedulingPolicies operator()() const {
    SchedulingPolicies policies;
    if (shortest) policies.order = std::make_unique<ShortestPredictedFirst>();
    policies.admission = std::make_unique<PredictedAdmission>(PredictedAdmissionOptions{
        .policy = {.max_sequences = sequences}, .packing = packing, .max_overtaking = 20});
    policies.preemption = std::make_unique<PreemptExceeded>();
    return policies;
  }
};

SimulatedRequest any_request(std::mt19937& random, double error) {
  SimulatedRequest request;
  for (auto n = 1 + random() % 50; n > 0; --n)
    request.prompt.push_back(static_cast<int32_t>(random() % 1000));
  request.answer = 1 + static_cast<int>(random() % 150);
  const double wrong = 1 + error * (static_cast<double>(random() % 2001) / 1000 - 1);
  request.predicted = std::max(1, static_cast<int>(request.answer * wrong));
  request.is_expected = false;
  return request;
}

SimulatedOptions options_for(const Predicted& policies, int32_t blocks) {
  return {.pools = {blocks},
          .limits = {.max_step_tokens = 200, .admission = {.max_sequences = policies.sequences}},
          .policies = policies};
}

TEST(PredictedSimulationTest, RightPredictionsPackedBySumPreemptNoSequence) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    SimulatedEngine engine(
        options_for({.packing = Packing::kSum}, 20 + static_cast<int32_t>(random() % 60)));
    for (int i = 0; i < 80; ++i) engine.submit(any_request(random, 0));
    while (engine.outstanding() > 0) {
      engine.step();
      ASSERT_LT(engine.steps(), 20'000);
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(engine.scheduler().preemptions(), 0);
    EXPECT_EQ(engine.scheduler().extensions(), 0);
  }
}

// The same holds if any of several groups may be the one that lacks room.
TEST(PredictedSimulationTest, NoSequenceIsPreemptedInAnyGroup) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto blocks = [&] { return std::vector{20 + static_cast<int32_t>(random() % 60)}; };
    SimulatedOptions options = options_for({.packing = Packing::kSum}, 0);
    options.groups = {{{}, blocks()},
                      {{StateKind::kWindow, 1 + static_cast<int64_t>(random() % 50)}, blocks()},
                      {{StateKind::kChunk, 1 + static_cast<int64_t>(random() % 50)}, blocks()}};
    if (seed % 2 == 0) options.groups.erase(options.groups.begin());
    if (seed % 4 == 1) std::swap(options.groups[0], options.groups[1]);
    options.limits.max_step_tokens = 40;
    SimulatedEngine engine(options);
    for (int i = 0; i < 80; ++i) engine.submit(any_request(random, 0));
    while (engine.outstanding() > 0) {
      engine.step();
      ASSERT_LT(engine.steps(), 40'000);
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(engine.exhausted(), 0);
    EXPECT_EQ(engine.scheduler().preemptions(), 0);
  }
}

// In a model whose layers all have a window, three long prompts have room beside each other.
TEST(PredictedSimulationTest, LongPromptsOfAWindowAreComputedBesideEachOther) {
  constexpr StateRule kWindow{StateKind::kWindow, 4096};
  for (const Packing packing : {Packing::kSum, Packing::kPeak}) {
    SimulatedOptions options = options_for({.packing = packing}, 0);
    options.limits.max_step_tokens = 512;
    options.groups = {
        {kWindow, {static_cast<int32_t>(3 * kWindow.most_blocks(int64_t{1} << 20, 512))}}};
    SimulatedEngine engine(options);
    for (int32_t i = 0; i < 3; ++i)
      engine.submit({.prompt = std::vector<int32_t>(8192, i), .answer = 50, .predicted = 50});
    int running = 0;
    while (engine.outstanding() > 0) {
      engine.step();
      running = std::max(running, engine.scheduler().running());
    }
    EXPECT_EQ(running, 3);
    EXPECT_EQ(engine.scheduler().preemptions(), 0);
  }
}

// Whatever was predicted, all requests must end and no block be lost. The simulated engine checks
// every step, among other things that nothing waits while there is room for it.
TEST(PredictedSimulationTest, WrongPredictionsEndToo) {
  int64_t extensions = 0, preemptions = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Predicted policies{.packing = seed % 2 == 0 ? Packing::kSum : Packing::kPeak,
                             .shortest = seed % 3 == 0,
                             .sequences = 1 + static_cast<int>(random() % 40)};
    SimulatedEngine engine(options_for(policies, 20 + static_cast<int32_t>(random() % 60)));
    for (int i = 0; i < 60; ++i) engine.submit(any_request(random, 0.9));
    while (engine.outstanding() > 0) {
      engine.step();
      ASSERT_LT(engine.steps(), 50'000) << "it does not come to an end";
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(engine.allocator().free(), engine.allocator().total());
    EXPECT_EQ(engine.allocator().unpromised(Tier::kDevice),
              engine.allocator().total(Tier::kDevice));
    extensions += engine.scheduler().extensions();
    preemptions += engine.scheduler().preemptions();
  }
  EXPECT_GT(extensions, 0);
  EXPECT_GT(preemptions, 0);
}

TEST(PredictedSimulationTest, NoRequestStarvesUnderConstantLoad) {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Predicted policies{.packing = seed % 2 == 0 ? Packing::kSum : Packing::kPeak,
                             .shortest = seed % 3 == 0,
                             .sequences = 24};
    SimulatedEngine engine(options_for(policies, 30));
    // This request is hard to find room for, and the last by its length.
    SimulatedRequest large = any_request(random, 0);
    large.answer = large.predicted = 300;
    std::vector<RequestId> first = {engine.submit(large)};
    constexpr size_t kOutstanding = 40;
    const auto some_wait = [&] {
      return std::ranges::any_of(first, [&](RequestId id) { return !engine.has_ended(id); });
    };
    while (first.size() < kOutstanding) first.push_back(engine.submit(any_request(random, 0.5)));
    while (some_wait()) {
      while (engine.outstanding() < kOutstanding) {
        SimulatedRequest small = any_request(random, 0.5);
        small.answer = small.predicted = 1 + small.answer % 8;
        engine.submit(small);
      }
      engine.step();
      ASSERT_LT(engine.steps(), 30'000) << "a request waits for ever";
      if (testing::Test::HasFailure()) return;
    }
    for (const RequestId id : engine.ids()) engine.cancel(id);
  }
}

TEST(PredictedSimulationTest, ASequenceBeyondItsReservationIsPromisedTwiceAsMuch) {
  SimulatedEngine engine(options_for({}, 64));
  SimulatedRequest request{
      .prompt = std::vector<int32_t>(10, 1), .answer = 100, .is_expected = false, .predicted = 10};
  engine.submit(request);
  while (engine.outstanding() > 0) engine.step();
  // The promised answer grows from 10 to 20, 40, 80 and 160 tokens.
  EXPECT_EQ(engine.scheduler().extensions(), 4);
  EXPECT_EQ(engine.scheduler().preemptions(), 0);
}

}  // namespace
}  // namespace testing_schedule
}  // namespace spillway
