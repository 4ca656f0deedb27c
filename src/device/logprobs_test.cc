// SPDX-License-Identifier: Apache-2.0
#include "device/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace spillway {
namespace {

std::vector<int32_t> ids_of(const Logprobs& logprobs) {
  std::vector<int32_t> ids;
  for (const TokenLogprob& entry : logprobs.top) ids.push_back(entry.id);
  return ids;
}

TEST(LogprobsTest, AreThoseOfTheSoftmax) {
  const std::vector<float> logits{1, 3, 2, -1};
  double total = 0;
  for (const float logit : logits) total += std::exp(double{logit});
  EXPECT_NEAR(log_sum_exp(logits), std::log(total), 1e-12);
  const Logprobs logprobs = compute_logprobs(logits, 0, 2);
  EXPECT_NEAR(logprobs.chosen, 1 - std::log(total), 1e-6);
  EXPECT_EQ(ids_of(logprobs), (std::vector<int32_t>{1, 2}));
  EXPECT_NEAR(logprobs.top[1].logprob, 2 - std::log(total), 1e-6);
  EXPECT_TRUE(compute_logprobs(logits, 0, 0).top.empty());
}

TEST(LogprobsTest, EqualLogitsAreInTheOrderOfTheirIds) {
  const std::vector<float> logits{0.0F, 2, -0.0F, 2, 0.0F, 2};
  EXPECT_EQ(ids_of(compute_logprobs(logits, 0, 5)), (std::vector<int32_t>{1, 3, 5, 0, 2}));
}

// Far below the largest logit, neighbouring floats have the same log-probability when rounded.
TEST(LogprobsTest, LogitsThatDifferAreInTheirOrder) {
  const float least = 1e-3F;
  const std::vector<float> logits{least, std::nextafter(least, 1.0F), 30};
  const Logprobs logprobs = compute_logprobs(logits, 2, 3);
  EXPECT_EQ(logprobs.top[1].logprob, logprobs.top[2].logprob);
  EXPECT_EQ(ids_of(logprobs), (std::vector<int32_t>{2, 1, 0}));
}

TEST(LogprobsTest, AllThatThereAreWhereMoreAreAskedFor) {
  const float never = -std::numeric_limits<float>::infinity();
  const Logprobs logprobs = compute_logprobs(std::vector<float>{never, 1, never}, 1, 100);
  EXPECT_EQ(ids_of(logprobs), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(logprobs.chosen, 0);
  EXPECT_EQ(logprobs.top[1].logprob, never);
}

}  // namespace
}  // namespace spillway
