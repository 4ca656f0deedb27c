// SPDX-License-Identifier: Apache-2.0
#include "plan/predict.h"

#include <gtest/gtest.h>

#include "plan/test_traits.h"

namespace spillway {
namespace {

struct PredictTest : testing::Test {
  Hardware hardware = read_hardware("h200");
  Model model = describe_dummy_model("opt-1.3b");
  Plan plan;
  RunSize size{.sequences = 4};

  Prediction of(const std::vector<RequestGroup>& groups) {
    const Workload workload{groups};
    size.tokens = workload.longest();
    return predict(hardware, model, plan, footprint(model, plan, size, gpu_traits()), size,
                   workload, PriceBy::kSums);
  }
  double steps(const std::vector<RequestGroup>& groups) {
    const Prediction predicted = of(groups);
    return predicted.decode_s / predicted.step_s;
  }
};

constexpr int64_t kPrompt = 64;

TEST_F(PredictTest, EqualRequestsEndInBlocks) {
  EXPECT_DOUBLE_EQ(steps({{8, kPrompt, 33}}), 2 * 32);
  EXPECT_DOUBLE_EQ(steps({{9, kPrompt, 33}}), 3 * 32);
  EXPECT_DOUBLE_EQ(steps({{5, kPrompt, 33}, {4, kPrompt, 33}}), 3 * 32) << "however they are told";
  plan.schedule = ScheduleKind::kZigzag;
  EXPECT_DOUBLE_EQ(steps({{9, kPrompt, 33}}), 3 * 32);
}

// The workload has three short answers and a long one, twice.
TEST_F(PredictTest, OnlyBlocksWaitForTheLongestAnswer) {
  const std::vector<RequestGroup> mixed = {
      {3, kPrompt, 11}, {1, kPrompt, 101}, {3, kPrompt, 11}, {1, kPrompt, 101}};
  EXPECT_DOUBLE_EQ(steps(mixed), 10 + 10 + 100) << "behind two short ones";
  const Prediction continuous = of(mixed);
  plan.schedule = ScheduleKind::kZigzag;
  EXPECT_DOUBLE_EQ(steps(mixed), 2 * 100);
  const Prediction zigzag = of(mixed);
  EXPECT_GT(zigzag.decode_s, 1.5 * continuous.decode_s);
  EXPECT_DOUBLE_EQ(continuous.decode_tokens_per_s * continuous.decode_s, 6 * 10 + 2 * 100);
  EXPECT_DOUBLE_EQ(zigzag.decode_tokens_per_s * zigzag.decode_s, 6 * 10 + 2 * 100);
  EXPECT_LT(zigzag.step_s, continuous.step_s) << "fewer run";
}

TEST_F(PredictTest, OrderDecidesWhoSharesABlock) {
  plan.schedule = ScheduleKind::kZigzag;
  EXPECT_DOUBLE_EQ(steps({{4, kPrompt, 11}, {4, kPrompt, 101}}), 10 + 100);
  EXPECT_DOUBLE_EQ(steps({{2, kPrompt, 11}, {4, kPrompt, 101}, {2, kPrompt, 11}}), 2 * 100);
  plan.schedule = ScheduleKind::kRow;
  plan.micro_batch = 2;
  EXPECT_DOUBLE_EQ(steps({{2, kPrompt, 11}, {4, kPrompt, 101}, {2, kPrompt, 11}}),
                   10 + 100 + 100 + 10);
}

// 58 of 64 GiB of KV are in host memory: the CPU reads a part of them there, and the rest is copied
// over the bus.
TEST_F(PredictTest, ALongSequenceIsReadByCpuAndBusTogether) {
  model = describe_dummy_model("llama-2-7b");
  plan.kv = {0.1, 0.9, 0};
  size = {.tokens = 131072, .sequences = 1, .micro_tokens = 8192};
  DeviceTraits traits = gpu_traits();
  traits.memory_bytes = uint64_t{40} << 30;
  const Workload workload{{{1, 131040, 32}}};
  const auto predicted = [&](AttentionPlace place) {
    plan.attention = place;
    const Footprint needs = footprint(model, plan, size, traits);
    EXPECT_TRUE(needs.layout.partitioned);
    return predict(hardware, model, plan, needs, size, workload);
  };
  const Prediction both = predicted(AttentionPlace::kAuto), cpu = predicted(AttentionPlace::kCpu),
                   gpu = predicted(AttentionPlace::kGpu);
  EXPECT_LT(both.step_s, 0.8 * cpu.step_s);
  EXPECT_LT(both.step_s, 0.8 * gpu.step_s);
  EXPECT_GT(both.cpu_attention, 0.2);
  EXPECT_LT(both.cpu_attention, 0.9);
  // Each chunk reads all KV before it, so small chunks wait for the bus.
  size.micro_tokens = 512;
  EXPECT_GT(predicted(AttentionPlace::kAuto).prefill_s, 4 * both.prefill_s);
}

TEST_F(PredictTest, AnswersOfOneTokenComeOutOfTheirPrompts) {
  EXPECT_EQ(of({{4, kPrompt, 1}}).decode_s, 0);
  EXPECT_GT(of({{3, kPrompt, 1}, {1, kPrompt, 2}}).decode_s, 0);
}

}  // namespace
}  // namespace spillway
