// SPDX-License-Identifier: Apache-2.0
#include "model/rope_spec.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

RopeSpec plain_rope() {
  RopeSpec rope;
  set_plain_rope(rope, 10000, 64);
  return rope;
}

// The expected numbers are worked out by hand from the paper's formulas: of 32 pairs, those up to
// the 10th turn more than 32 times in 4,096 positions, and those from the 23rd on less than once.
TEST(YarnTest, KeepsFastPairsAndStretchesSlowOnes) {
  const RopeSpec rope = plain_rope();
  const auto plain = base_inverse_frequencies(rope);
  const auto scaled = yarn_inverse_frequencies({.factor = 8, .original_context = 4096}, rope);
  ASSERT_EQ(scaled.size(), 32);
  for (size_t i = 0; i <= 10; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i]) << i;
  for (size_t i = 23; i < 32; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8) << i;
  for (size_t i = 11; i < 23; ++i) {
    const double share = (static_cast<double>(i) - 10) / (23 - 10);
    EXPECT_NEAR(scaled[i], plain[i] * (share / 8 + 1 - share), 1e-12) << i;
  }
}

TEST(YarnTest, HasAnAttentionFactor) {
  EXPECT_DOUBLE_EQ(yarn_attention_factor(1), 1);
  EXPECT_NEAR(yarn_attention_factor(40), 1.3688879, 1e-7);
  EXPECT_NEAR(yarn_attention_factor(40, 0.707), 1.2608038, 1e-7);
}

}  // namespace
}  // namespace spillway
