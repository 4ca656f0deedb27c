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

// Three short answers and a long one, twice.
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
  EXPECT_LT(zigzag.step_s, continuous.step_s) << "fewer are at work";
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

TEST_F(PredictTest, AnswersOfOneTokenComeOutOfTheirPrompts) {
  EXPECT_EQ(of({{4, kPrompt, 1}}).decode_s, 0);
  EXPECT_GT(of({{3, kPrompt, 1}, {1, kPrompt, 2}}).decode_s, 0);
}

}  // namespace
}  // namespace spillway
