// SPDX-License-Identifier: Apache-2.0
#include "engine/result_settings.h"

#include <gtest/gtest.h>

#include "tests/test_machine.h"

namespace spillway {
namespace {

class HostAttentionTest : public testing::Test {
 protected:
  std::string of(TierShares kv, AttentionPlace place, std::optional<double> share = {}) {
    Plan plan;
    plan.kv = kv;
    plan.attention = place;
    plan.cpu_attention = share;
    return describe_host_attention(plan, gpu_, host_);
  }
  TestMachine machine_{/*has_accelerator=*/true};
  const Device& host_ = machine_.host;
  const Device& gpu_ = machine_.device();
};

TEST_F(HostAttentionTest, IsPartOfAJobWhereTheCpuAttendsBesideAGpu) {
  const std::string all = of({0, 1, 0}, AttentionPlace::kCpu);
  EXPECT_NE(all, "none");
  EXPECT_NE(of({0.5, 0.5, 0}, AttentionPlace::kCpu), all);
  EXPECT_NE(of({0, 1, 0}, AttentionPlace::kAuto), all);
  EXPECT_NE(of({0, 1, 0}, AttentionPlace::kAuto, 0.25), of({0, 1, 0}, AttentionPlace::kAuto, 0.5));
}

TEST_F(HostAttentionTest, IsNoneWhereverKvLiesThatTheDeviceAttendsTo) {
  EXPECT_EQ(of({1, 0, 0}, AttentionPlace::kCpu), "none");
  EXPECT_EQ(of({0, 1, 0}, AttentionPlace::kGpu), "none");
  EXPECT_EQ(of({0, 0, 1}, AttentionPlace::kCpu), "none");
  // Without a GPU the CPU is the device itself.
  Plan plan;
  plan.kv = {0, 1, 0};
  EXPECT_EQ(describe_host_attention(plan, host_, host_), "none");
}

TEST_F(HostAttentionTest, ChangesNothingWithResidencyAndSchedule) {
  Plan plan;
  const std::string before = describe_host_attention(plan, gpu_, host_);
  plan.weights = {0, 0.5, 0.5};
  plan.overrides = {{.home = Tier::kHost}};
  plan.activations = {0, 1, 0};
  plan.micro_batch = 3;
  plan.micro_batches = 2;
  plan.schedule = ScheduleKind::kRow;
  plan.overlap = false;
  EXPECT_EQ(describe_host_attention(plan, gpu_, host_), before);
}

TEST_F(HostAttentionTest, TheCutOfLinearLayersCountsBesideAGpu) {
  Plan plan;
  EXPECT_EQ(describe_host_linear(plan, gpu_, host_), "none");
  plan.cpu_linear = {{1, 0.625}, {64, 0.25}};
  const std::string cut = describe_host_linear(plan, gpu_, host_);
  EXPECT_NE(cut, "none");
  EXPECT_EQ(describe_host_linear(plan, host_, host_), "none");
  plan.weights = {0.5, 0.5, 0};
  EXPECT_NE(describe_host_linear(plan, gpu_, host_), cut) << "other rows";
  plan.weights = {};
  EXPECT_EQ(describe_host_linear(plan, gpu_, host_), cut);
  plan.cpu_linear[0].modules = {{"mlp_up", 0.5}};
  EXPECT_NE(describe_host_linear(plan, gpu_, host_), cut) << "of one module";
  plan.cpu_linear[0].modules.clear();
  plan.cpu_linear[1].share = 0.5;
  EXPECT_NE(describe_host_linear(plan, gpu_, host_), cut);
  plan.cpu_linear = {{1, 0}};
  EXPECT_EQ(describe_host_linear(plan, gpu_, host_), "none");
}

TEST_F(HostAttentionTest, TuningCountsAsFarAsItIsLookedAt) {
  TuningTable table;
  EXPECT_EQ(describe_tuning(nullptr, false, host_, "m"), "none");
  EXPECT_EQ(describe_tuning(&table, false, host_, "m"), "none");
  table.set({DType::kF16, WeightLayout::kRows, 8, 8}, {2, 9});
  const std::string points = describe_tuning(&table, false, host_, "m");
  EXPECT_NE(points, "none");
  EXPECT_EQ(describe_tuning(&table, true, host_, "m"), "none");
  table.set_scores("m", {1, 2});
  EXPECT_EQ(describe_tuning(&table, false, host_, "m"), points) << "the CPU knows no scores";
  EXPECT_NE(describe_tuning(&table, true, gpu_, "m"), "none");
  EXPECT_EQ(describe_tuning(&table, true, gpu_, "another"), "none");
}

TEST(ResultSettingsTest, SequencesStayWhereResultsWouldShowThatTheyWereComputedAgain) {
  EXPECT_FALSE(may_preempt(0.1F, /*deterministic=*/true));
  EXPECT_TRUE(may_preempt(0.1F, /*deterministic=*/false));
  EXPECT_TRUE(may_preempt(0, /*deterministic=*/true));
}

TEST(ResultSettingsTest, WeightTypesAreThoseInMemory) {
  Model model = describe_dummy_model("opt-125m");
  const std::string plain = describe_weight_types(model);
  EXPECT_NE(plain.find("F16"), std::string::npos) << plain;
  compress_matrices(model);
  EXPECT_NE(describe_weight_types(model), plain);
}

}  // namespace
}  // namespace spillway
