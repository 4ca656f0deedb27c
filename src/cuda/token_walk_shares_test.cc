// SPDX-License-Identifier: Apache-2.0
#include "cuda/token_walk_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "cuda/token_walk_list.h"

namespace spillway::cuda {
namespace {

// A walk on a GPU whose blocks read at these speeds and wait for the last one.
std::vector<WalkTimes> time_walk(std::span<const double> shares,
                                 const std::vector<double>& speeds) {
  std::vector<double> busy;
  for (size_t i = 0; i < speeds.size(); ++i) busy.push_back(3e6 * shares[i] / speeds[i]);
  const double last = *std::ranges::max_element(busy);
  std::vector<WalkTimes> times;
  for (const double t : busy)
    times.push_back({static_cast<uint32_t>(last) + 1000, static_cast<uint32_t>(last - t)});
  return times;
}

TEST(WalkSharesTest, BlocksEndTogetherAfterAFewWalks) {
  std::vector<double> speeds(132, 1.0);
  for (const size_t fast : {12, 13, 18, 19, 120, 121}) speeds[fast] = 1.15;
  speeds[7] = 0.95;
  WalkShares shares(132);
  const auto spread = [&] {
    double least = 1e9, most = 0;
    for (size_t i = 0; i < speeds.size(); ++i) {
      least = std::min(least, shares.shares()[i] / speeds[i]);
      most = std::max(most, shares.shares()[i] / speeds[i]);
    }
    return most / least;
  };
  EXPECT_NEAR(spread(), 1.15 / 0.95, 1e-9);
  int walks = 0;
  for (; !shares.settled(); ++walks) shares.update(time_walk(shares.shares(), speeds));
  EXPECT_LE(walks, 10);
  EXPECT_LT(spread(), 1.01);
  EXPECT_NEAR(std::accumulate(shares.shares().begin(), shares.shares().end(), 0.0), 1, 1e-9);
}

TEST(WalkSharesTest, EveryPairIsSomebodys) {
  WalkShares shares(132);
  std::vector<double> speeds;
  for (int i = 0; i < 132; ++i) speeds.push_back(1 + 0.3 * (i % 7 == 0) - 0.2 * (i % 11 == 0));
  while (!shares.settled()) shares.update(time_walk(shares.shares(), speeds));
  const auto walk = std::make_unique<Walk>();
  shares.apply(*walk);
  WalkPhase phase = {};
  for (const int pairs : {0, 1, 131, 132, 256, 11008, 64128}) {
    phase.pairs = pairs;
    int next = 0;
    for (int block = 0; block < 132; ++block) {
      const BlockPairs mine(*walk, phase, {block, 132, 0});
      ASSERT_EQ(mine.first, next);
      ASSERT_GE(mine.count, 0);
      next += mine.count;
    }
    EXPECT_EQ(next, pairs);
  }
}

// Nonsense, as of a walk that never ran, changes nothing.
TEST(WalkSharesTest, TimesOfNothingChangeNothing) {
  WalkShares shares(4);
  while (!shares.settled()) shares.update(std::vector<WalkTimes>(4));
  for (const double share : shares.shares()) EXPECT_EQ(share, 0.25);
}

TEST(WalkSharesTest, MoreBlocksThanHaveSharesAreEqual) {
  const WalkShares shares(200);
  EXPECT_TRUE(shares.settled());
  const auto walk = std::make_unique<Walk>();
  shares.apply(*walk);
  WalkPhase phase = {};
  phase.pairs = 1000;
  for (const int block : {0, 77, 199}) {
    EXPECT_EQ(BlockPairs(*walk, phase, {block, 200, 0}).count, 5);
  }
}

}  // namespace
}  // namespace spillway::cuda
