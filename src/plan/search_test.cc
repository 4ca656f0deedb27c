// SPDX-License-Identifier: Apache-2.0
#include "plan/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>

#include "base/error.h"
#include "plan/greedy_placement.h"
#include "plan/test_traits.h"

namespace spillway {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30, kMiB = uint64_t{1} << 20;

struct SearchTest : testing::Test {
  Hardware hardware = read_hardware("h200");
  Model model = describe_dummy_model("opt-30b");
  DeviceTraits traits = gpu_traits(256 * kMiB);
  Budgets budgets{.device = 16 * kGiB, .host = 100 * kGiB, .disk = 0};
  Workload workload{{{.count = 64, .prompt = 512, .generate = 32}}};
  RunSize size{.micro_tokens = 2048};

  std::vector<FoundPlan> search(int most = 1) {
    traits.memory_bytes = traits.host_visible ? budgets.host : budgets.device;
    traits.host_memory_bytes = budgets.host;
    return search_plans({.hardware = hardware,
                         .model = model,
                         .traits = traits,
                         .workload = workload,
                         .budgets = budgets,
                         .size = size},
                        most);
  }
  std::vector<FoundPlan> search_with(const GivenFields& given, bool same) {
    traits.memory_bytes = budgets.device;
    traits.host_memory_bytes = budgets.host;
    return search_plans({.hardware = hardware,
                         .model = model,
                         .traits = traits,
                         .workload = workload,
                         .budgets = budgets,
                         .size = size,
                         .given = given,
                         .same_for_every_sequence = same},
                        8);
  }
  Prediction greedy(int64_t sequences) {
    RunSize whole = size;
    whole.tokens = workload.longest();
    whole.sequences = sequences;
    const Plan plan = place_greedily(model, whole, traits, budgets);
    return predict(hardware, model, plan, footprint(model, plan, whole, traits), whole, workload);
  }
};

TEST_F(SearchTest, AllOnADeviceThatHoldsIt) {
  budgets.device = 139 * kGiB;
  const auto found = search();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found[0].plan.all_on_device());
  EXPECT_EQ(found[0].size.sequences, 64);
}

TEST_F(SearchTest, IsNeverSlowerThanTheRule) {
  for (const int64_t sequences : {1, 8, 64}) {
    workload.groups[0].count = sequences;
    const auto found = search();
    ASSERT_FALSE(found.empty());
    EXPECT_LE(found[0].predicted.total_s(), greedy(sequences).total_s() * 1.005) << sequences;
  }
}

// Simulates all plans on a coarse grid of shares: none may be better than the search's by more than
// 2%.
TEST_F(SearchTest, IsAsGoodAsTryingEverything) {
  model = describe_dummy_model("opt-1.3b");
  for (const auto& [gpu, host, prompt] :
       {std::tuple(1.2, 8.0, 512), {2.0, 3.0, 128}, {1.6, 8.0, 1500}}) {
    SCOPED_TRACE(testing::Message() << gpu << " " << host << " " << prompt);
    budgets = {.device = static_cast<uint64_t>(gpu * double{kGiB}),
               .host = static_cast<uint64_t>(host * double{kGiB})};
    workload.groups[0] = {.count = 4, .prompt = prompt, .generate = 32};
    const auto found = search();
    ASSERT_FALSE(found.empty());
    RunSize whole = size;
    whole.tokens = workload.longest();
    whole.sequences = 4;
    double best = 1e300;
    int tried = 0;
    for (int weights = 0; weights <= 20; ++weights) {
      for (int kv = 0; kv <= 4; ++kv) {
        for (int attention = 0; attention <= 4; ++attention) {
          for (const int micro_batch : {0, 2, 1}) {
            Plan plan;
            plan.weights = {weights / 20.0, 1 - weights / 20.0, 0};
            plan.kv = {kv / 4.0, 1 - kv / 4.0, 0};
            plan.cpu_attention = attention / 4.0;
            plan.micro_batch = micro_batch;
            if (kv == 4 && attention > 0) continue;
            const Footprint needs = footprint(model, plan, whole, traits);
            if (!fit_of(needs, !traits.host_visible, budgets).fits()) continue;
            ++tried;
            best = std::min(best, predict(hardware, model, plan, needs, whole, workload).total_s());
          }
        }
      }
    }
    EXPECT_GT(tried, 20);
    EXPECT_LE(found[0].predicted.total_s(), best * 1.02);
  }
}

TEST_F(SearchTest, NothingFitsIntoNothing) {
  budgets = {.device = 1 * kMiB, .host = 1 * kMiB};
  EXPECT_TRUE(search().empty());
}

TEST_F(SearchTest, WhatIsFoundFits) {
  std::mt19937 random(7);
  for (int i = 0; i < 8; ++i) {
    budgets.device = (3 + random() % 60) * kGiB;
    budgets.host = (8 + random() % 120) * kGiB;
    budgets.disk = random() % 2 == 0 ? 0 : 100 * kGiB;
    workload.groups[0].count = 1 + static_cast<int64_t>(random() % 100);
    SCOPED_TRACE(testing::Message() << budgets.device / kGiB << " " << budgets.host / kGiB << " "
                                    << budgets.disk / kGiB << " " << workload.groups[0].count);
    for (const FoundPlan& plan : search(3)) {
      const Footprint needs = footprint(model, plan.plan, plan.size, traits);
      EXPECT_NO_THROW(require_fit(needs, true, budgets));
      EXPECT_TRUE(fit_of(needs, !traits.host_visible, budgets).fits());
      for (const TierShares& shares : {plan.plan.weights, plan.plan.kv, plan.plan.activations})
        EXPECT_NEAR(shares.device + shares.host + shares.disk, 1, 1e-9);
    }
  }
}

// The same processor attends to a sequence, whatever other sequences there are.
TEST_F(SearchTest, SequencesAreAlikeWhereTheyMustBe) {
  for (const int64_t count : {1, 16, 64, 200}) {
    workload.groups[0].count = count;
    for (const FoundPlan& found : search_with({}, /*same=*/true)) {
      const Plan& plan = found.plan;
      if (plan.kv.host == 0) continue;
      EXPECT_NE(plan.attention, AttentionPlace::kAuto) << count;
      if (plan.attention == AttentionPlace::kCpu) EXPECT_EQ(plan.kv.host, 1) << count;
    }
  }
}

// The CPU can also attend to a few long sequences: there is room for the pages of one, however few
// they are.
TEST_F(SearchTest, TheCpuAttendsToFewLongSequences) {
  workload.groups[0] = {.count = 16, .prompt = 1900, .generate = 100};
  const auto found = search_with({}, /*same=*/true);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].plan.attention, AttentionPlace::kCpu);
  EXPECT_GE(found[0].needs.layout.staging_blocks, found[0].needs.layout.sequence_blocks);
}

// The decoder gives whole sequences to the CPU.
TEST_F(SearchTest, SharesOfAttentionAreWholeSequences) {
  for (const int64_t count : {3, 10, 50}) {
    workload.groups[0].count = count;
    for (const FoundPlan& found : search_with({}, /*same=*/false)) {
      if (!found.plan.cpu_attention) continue;
      const double on_cpu = *found.plan.cpu_attention * found.plan.kv.host *
                            static_cast<double>(found.size.sequences);
      EXPECT_NEAR(on_cpu, std::round(on_cpu), 1e-6);
    }
  }
}

TEST_F(SearchTest, WhatIsGivenHolds) {
  for (const GivenFields& given : {GivenFields{.micro_batch = 16},
                                   GivenFields{.attention = AttentionPlace::kGpu, .overlap = false},
                                   GivenFields{.schedule = ScheduleKind::kZigzag,
                                   .attention = AttentionPlace::kAuto,
                                   .cpu_attention = 0.25,
                                   .micro_batch = 8,
                                   .micro_batches = 4}}) {
    const auto found = search_with(given, /*same=*/false);
    ASSERT_FALSE(found.empty());
    for (const FoundPlan& at : found) {
      const Plan& plan = at.plan;
      if (given.micro_batch) EXPECT_EQ(plan.micro_batch, *given.micro_batch);
      if (given.micro_batches) EXPECT_EQ(plan.micro_batches, *given.micro_batches);
      if (given.attention) EXPECT_EQ(plan.attention, *given.attention);
      if (given.cpu_attention) EXPECT_EQ(plan.cpu_attention, given.cpu_attention);
      if (given.schedule) EXPECT_EQ(plan.schedule, *given.schedule);
      EXPECT_EQ(plan.overlap, given.overlap);
      EXPECT_TRUE(
          fit_of(footprint(model, plan, at.size, traits), !traits.host_visible, budgets).fits());
    }
  }
}

// Keeping activations on the device is slower, because more weights must leave it.
TEST_F(SearchTest, ActivationsOfLargeBlocksLeaveRoomForWeights) {
  model = describe_dummy_model("mistral-7b");
  workload.groups[0].generate = 128;
  budgets.device = 4 * kGiB;
  const auto found = search();
  ASSERT_FALSE(found.empty());
  Plan plan = found[0].plan;
  ASSERT_GT(plan.activations.host, 0.5);
  EXPECT_GE(plan.activations.device * found[0].needs.layout.max_tokens,
            static_cast<double>(found[0].size.sequences) - 0.5)
      << "those that decode";
  plan.activations = {};
  Footprint needs;
  do {
    plan.weights.device -= 0.001;
    plan.weights.host += 0.001;
    needs = footprint(model, plan, found[0].size, traits);
  } while (plan.weights.device > 0 && !fit_of(needs, !traits.host_visible, budgets).fits());
  const Prediction there = predict(hardware, model, plan, needs, found[0].size, workload);
  EXPECT_LT(found[0].predicted.total_s(), there.total_s() * 0.99);
}

// As little as possible is on the device, and with the activations of a batch block it is still too
// much.
TEST_F(SearchTest, ActivationsLeaveADeviceThatIsTooSmall) {
  RunSize least = size;
  least.tokens = workload.longest();
  least.sequences = 64;
  least.micro_tokens = kSmallestChunk;
  const auto fits_there = [&](const TierShares& activations) {
    traits.memory_bytes = budgets.device;
    Plan plan;
    plan.weights = plan.kv = {0, 1, 0};
    plan.embeddings = Tier::kHost;
    plan.attention = AttentionPlace::kCpu;
    plan.activations = activations;
    return fit_of(footprint(model, plan, least, traits), !traits.host_visible, budgets).fits();
  };
  budgets = {.device = 1 * kGiB, .host = 130 * kGiB};
  while (!fits_there({0, 1, 0}) && budgets.device < 8 * kGiB) budgets.device += 16 * kMiB;
  budgets.device += 32 * kMiB;
  EXPECT_FALSE(fits_there({1, 0, 0})) << budgets.device / kMiB;
  const auto found = search_plans({.hardware = hardware,
                                   .model = model,
                                   .traits = traits,
                                   .workload = workload,
                                   .budgets = budgets,
                                   .size = size,
                                   .least_sequences = 64});
  traits.host_memory_bytes = budgets.host;
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].size.sequences, 64);
  EXPECT_LT(found[0].plan.activations.device, 0.5);
}

// With short prompts of few sequences, offloading activations gains nothing.
TEST_F(SearchTest, FewActivationsStayOnTheDevice) {
  workload.groups[0] = {.count = 4, .prompt = 64, .generate = 32};
  const auto found = search();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].plan.activations.device, 1);
}

TEST_F(SearchTest, MoreMemoryIsNeverPredictedSlower) {
  double before = 1e300;
  for (const uint64_t gib : {4, 6, 10, 16, 30, 48, 80}) {
    budgets.device = gib * kGiB;
    const auto found = search();
    ASSERT_FALSE(found.empty()) << gib;
    EXPECT_LE(found[0].predicted.total_s(), before * 1.005) << gib;
    before = found[0].predicted.total_s();
  }
}

}  // namespace
}  // namespace spillway
