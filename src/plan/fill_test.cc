// SPDX-License-Identifier: Apache-2.0
#include "plan/fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "plan/test_traits.h"

namespace spillway {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30, kMiB = uint64_t{1} << 20;

// OPT-30B in F16 beside a GPU with 16 GiB: 56 GiB of weights.
struct FillTest : testing::Test {
  Model model = describe_dummy_model("opt-30b");
  RunSize size{.tokens = 544, .sequences = 32, .micro_tokens = 2048};
  DeviceTraits traits = gpu_traits(256 * kMiB);
  Budgets budgets{.device = 16 * kGiB, .host = 100 * kGiB, .disk = 0};

  Plan fill() {
    traits.memory_bytes = traits.host_visible ? budgets.host : budgets.device;
    const Plan plan = fill_from_the_top(model, size, traits, budgets);
    // Whatever it says fits.
    const Footprint needs = footprint(model, plan, size, traits);
    check_fits(needs, !traits.host_visible, budgets);
    EXPECT_LE(needs.device.total() + needs.workspace, traits.memory_bytes);
    return plan;
  }
};

TEST_F(FillTest, EverythingOnADeviceThatHoldsIt) {
  budgets.device = 140 * kGiB;
  EXPECT_TRUE(fill().all_on_device());
}

TEST_F(FillTest, ALargeCacheGoesToTheHostAndWeightsFillTheDevice) {
  const Plan plan = fill();
  EXPECT_EQ(plan.kv.host, 1);
  EXPECT_GT(plan.weights.device, 0.15);
  EXPECT_LT(plan.weights.device, 0.24);
  EXPECT_NEAR(plan.weights.device + plan.weights.host, 1, 1e-9);
}

TEST_F(FillTest, ASmallCacheStays) {
  size.sequences = 1;
  const Plan plan = fill();
  EXPECT_EQ(plan.kv.device, 1);
  EXPECT_LT(plan.weights.device, 0.25);
}

TEST_F(FillTest, TheDiskTakesTheRestIfItMay) {
  budgets.host = 40 * kGiB;
  EXPECT_THROW(fill(), Error);
  budgets.disk = 60 * kGiB;
  const Plan plan = fill();
  EXPECT_GT(plan.weights.disk, 0.4);
  EXPECT_NEAR(plan.weights.device + plan.weights.host + plan.weights.disk, 1, 1e-9);
}

TEST_F(FillTest, WithoutADeviceTheHostIsFilledAndTheRestComesFromDisk) {
  traits = DeviceTraits();
  traits.layouts.fill(WeightLayout::kGroups16);
  traits.workspace_bytes = 20 * kMiB;
  size.sequences = 1;
  budgets = {.device = 0, .host = 40 * kGiB, .disk = 100 * kGiB, .host_is_limited = true};
  const Plan plan = fill();
  EXPECT_EQ(plan.weights.device, 0);
  EXPECT_GT(plan.weights.host, 0.55);
  EXPECT_GT(plan.weights.disk, 0.2);
  budgets.host = 200 * kGiB;
  EXPECT_TRUE(fill().all_on_device());
}

// More memory never leaves more outside.
TEST_F(FillTest, MoreMemoryTakesMore) {
  double before = -1;
  for (const uint64_t gib : {8, 10, 12, 16, 24, 32, 48, 64, 80}) {
    budgets.device = gib * kGiB;
    const double now = fill().weights.device;
    EXPECT_GE(now, before) << gib;
    before = now;
  }
  EXPECT_EQ(before, 1);
}

// Whatever memory there is: what it says fits, or it says that nothing does.
TEST_F(FillTest, RandomBudgetsAreKept) {
  std::mt19937 random(11);
  const auto pick = [&](double least, double most) {
    return static_cast<uint64_t>(std::uniform_real_distribution<double>(least, most)(random) *
                                 static_cast<double>(kGiB));
  };
  int found = 0;
  for (int i = 0; i < 120; ++i) {
    budgets = {.device = pick(2, 40), .host = pick(1, 60), .disk = 200 * kGiB};
    size.sequences = 1 + i % 5 * 8;
    SCOPED_TRACE(testing::Message() << budgets.device << " " << budgets.host << " " << i);
    try {
      fill();
      ++found;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("the plan needs")))
          << "what fill() gave did not fit";
    }
  }
  EXPECT_GT(found, 60);
}

TEST_F(FillTest, SaysWhatIsMissing) {
  budgets.device = 3 * kGiB;
  try {
    fill();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), testing::HasSubstr("3.00 GiB of GPU memory"));
  }
}

}  // namespace
}  // namespace spillway
