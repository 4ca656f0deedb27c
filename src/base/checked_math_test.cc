// SPDX-License-Identifier: Apache-2.0
#include "base/checked_math.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(CheckedMathTest, AnswersNulloptInsteadOfWrapping) {
  EXPECT_EQ(try_add<uint64_t>(kMax, 1), std::nullopt);
  EXPECT_EQ(try_add<uint64_t>(kMax, 0), kMax);
  EXPECT_EQ(try_mul<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(try_mul<uint64_t>(3, 5), 15U);
  EXPECT_EQ(try_align_up(kMax, 32), std::nullopt);
  EXPECT_EQ(try_align_up(33, 32), 64U);
  EXPECT_EQ(try_align_up(64, 32), 64U);
}

TEST(CheckedMathTest, CeilDivDoesNotOverflowNearTheTop) {
  EXPECT_EQ(ceil_div<uint64_t>(kMax, 2), kMax / 2 + 1);
  EXPECT_EQ(ceil_div(0, 7), 0);
}

}  // namespace
}  // namespace spillway
