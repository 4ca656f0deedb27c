// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_fit.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

// A run with 100 bytes on a device with a workspace of 20, 50 bytes in host memory and 10 on disk.
struct MemoryFitTest : testing::Test {
  Footprint needs;
  MemoryFitTest() {
    needs.device.add(MemoryTag::kWeights, 100);
    needs.host.add(MemoryTag::kKv, 50);
    needs.disk.add(MemoryTag::kActivations, 10);
    needs.workspace = 20;
  }
};

TEST_F(MemoryFitTest, EachMemoryIsHeldToItsBudget) {
  EXPECT_TRUE(fit_of(needs, true, {120, 50, 10}).fits());
  EXPECT_FALSE(fit_of(needs, true, {119, 50, 10}).device);
  EXPECT_FALSE(fit_of(needs, true, {120, 49, 10}).host);
  EXPECT_FALSE(fit_of(needs, true, {120, 50, 9}).disk);
  EXPECT_TRUE(fit_of(needs, true, {120, 49, 9}).computing);
  EXPECT_FALSE(fit_of(needs, true, {119, 50, 10}).computing);
}

TEST_F(MemoryFitTest, WithoutADeviceTheHostComputes) {
  EXPECT_TRUE(fit_of(needs, false, {0, 120, 10}).fits());
  EXPECT_FALSE(fit_of(needs, false, {0, 119, 10}).computing);
}

// A plan by hand is refused only for what is certainly allocated; workspaces are an estimate.
TEST_F(MemoryFitTest, OnlyPlansByHandMayLeaveOutWorkspaces) {
  const Budgets tight{100, 50, 10};
  EXPECT_FALSE(fit_of(needs, true, tight).fits());
  EXPECT_TRUE(fit_of(needs, true, tight, KvStaging::kWholeSequences, Workspaces::kLeftOut).fits());
  EXPECT_NO_THROW(require_fit(needs, true, tight));
  EXPECT_THROW(require_fit(needs, true, {99, 50, 10}), Error);
}

TEST_F(MemoryFitTest, MappedWeightsCountWhereTheHostIsLimited) {
  needs.mapped = 30;
  EXPECT_TRUE(fit_of(needs, false, {0, 120, 10}).host);
  EXPECT_FALSE(fit_of(needs, false, {0, 120, 10, true}).host);
  EXPECT_TRUE(fit_of(needs, false, {0, 150, 10, true}).host);
}

TEST_F(MemoryFitTest, KvThatComesToTheDeviceNeedsRoomThere) {
  RunLayout& layout = needs.layout;
  layout.micro_tokens = kKvBlockTokens;
  layout.sequence_blocks = 1000;
  layout.host_blocks = 4000;
  const Budgets plenty{1000, 1000, 1000};
  layout.staging_blocks = 1001;
  EXPECT_TRUE(fit_of(needs, true, plenty).fits());
  layout.staging_blocks = 1000;
  EXPECT_FALSE(fit_of(needs, true, plenty).staging);
  EXPECT_TRUE(fit_of(needs, true, plenty).device) << "prompts can still go to the CPU";
  layout.staging_blocks = static_cast<int32_t>(layout.least_staging());
  EXPECT_TRUE(fit_of(needs, true, plenty, KvStaging::kPartitioned).fits());
  EXPECT_FALSE(fit_of(needs, true, plenty).fits());
  layout.host_blocks = 0;
  layout.staging_blocks = 0;
  EXPECT_TRUE(fit_of(needs, true, plenty).fits()) << "no KV comes";
}

}  // namespace
}  // namespace spillway
