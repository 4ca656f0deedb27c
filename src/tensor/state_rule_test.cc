// SPDX-License-Identifier: Apache-2.0
#include "tensor/state_rule.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(StateRuleTest, SaysWhichPositionsATokenReaches) {
  EXPECT_EQ((StateRule{}).first_reachable(100), 0);
  EXPECT_EQ((StateRule{StateKind::kWindow, 32}).first_reachable(31), 0);
  EXPECT_EQ((StateRule{StateKind::kWindow, 32}).first_reachable(32), 1);
  EXPECT_EQ((StateRule{StateKind::kChunk, 32}).first_reachable(31), 0);
  EXPECT_EQ((StateRule{StateKind::kChunk, 32}).first_reachable(32), 32);
  EXPECT_EQ((StateRule{StateKind::kChunk, 32}).first_reachable(63), 32);
}

TEST(StateRuleTest, ARecurrentStateIsOneBlock) {
  const StateRule rule{StateKind::kRecurrent};
  EXPECT_EQ(rule.entries(0), 0);
  EXPECT_EQ(rule.entries(1), 1);
  EXPECT_EQ(rule.entries(100'000), 1);
  EXPECT_EQ(rule.releasable(100'000), 0);
  EXPECT_EQ(rule.most_blocks(100'000, 512), 1);
}

// Whatever the steps, every token computed for the first time or again after a truncation must find
// what it reaches, and no sequence may hold more blocks than most_blocks() says.
TEST(StateRuleTest, NothingIsReleasedThatATokenReaches) {
  for (const StateRule rule :
       {StateRule{StateKind::kWindow, 1}, StateRule{StateKind::kWindow, 40},
        StateRule{StateKind::kChunk, 48}, StateRule{StateKind::kChunk, 5}, StateRule{}}) {
    for (const int64_t step : {1, 7, 64}) {
      int64_t most = 0;
      for (int64_t computed = 0; computed < 600; computed += step) {
        const int64_t first = rule.releasable(computed);
        EXPECT_LE(first * kKvBlockTokens,
                  rule.first_reachable(std::max<int64_t>(computed - kMostCutBack, 0)));
        most = std::max(most, rule.entries(computed + step) - first);
      }
      EXPECT_LE(most, rule.most_blocks(700, step));
    }
  }
}

}  // namespace
}  // namespace spillway
