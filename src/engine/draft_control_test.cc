// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace spillway {
namespace {

// With streamed weights the first additional tokens cost next to nothing; with resident weights
// each token costs as much as the first.
const DraftCosts kStreaming({{1, 1.0}, {16, 1.05}, {64, 1.5}});
const DraftCosts kComputing({{1, 1.0}, {64, 64.0}});

struct Course {
  double tokens = 0, seconds = 0;
  int proposed = 0, longest = 0;
  double rate() const { return tokens / seconds; }
};

// Runs steps of one sequence whose drafts are right with probability `acceptance`.
Course run(const DraftCosts& costs, double acceptance, int steps) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform;
  DraftControl control;
  Course result;
  for (int i = 0; i < steps; ++i) {
    const int drafts = control.choose(costs, 1, kMostDrafts);
    int accepted = 0;
    while (accepted < drafts && uniform(random) < acceptance) ++accepted;
    control.note(drafts, accepted);
    result.tokens += 1 + accepted;
    result.seconds += costs.ratio(1, 1 + drafts);
    result.proposed += drafts;
    result.longest = std::max(result.longest, drafts);
  }
  return result;
}

TEST(DraftControlTest, ProposesManyWhereTheyCostLittleAndAreRight) {
  const Course found = run(kStreaming, 0.9, 500);
  EXPECT_EQ(found.longest, kMostDrafts);
  EXPECT_GT(found.rate(), 4);
}

TEST(DraftControlTest, StopsWhereDraftsAreNeverRight) {
  for (const int steps : {100, 1000}) {
    EXPECT_GT(run(kStreaming, 0, steps).rate(), 0.97) << steps;
    EXPECT_GT(run(DraftCosts({{1, 1.0}, {9, 1.3}}), 0, steps).rate(), 0.97) << steps;
  }
  // The control goes on trying, ever more seldom.
  EXPECT_GT(run(kStreaming, 0, 1000).proposed, run(kStreaming, 0, 500).proposed);
}

TEST(DraftControlTest, ProposesNothingWhereEachTokenCostsAsMuchAsAStep) {
  EXPECT_EQ(run(kComputing, 0.9, 100).proposed, 0);
  EXPECT_EQ(DraftControl().choose(DraftCosts({{1, 1.0}, {8, 1.0}, {72, 9.0}}), 8, kMostDrafts), 0)
      << "a step of eight sequences is full";
}

TEST(DraftControlTest, ComesBackWhenDraftsAreRightAgain) {
  DraftControl control;
  for (int i = 0; i < 300; ++i) control.note(control.choose(kStreaming, 1, 8), 0);
  int steps = 0, accepted = 0;
  while (accepted < 80 && ++steps < 200) {
    const int drafts = control.choose(kStreaming, 1, 8);
    control.note(drafts, drafts);
    accepted += drafts;
  }
  EXPECT_LT(steps, 2 * DraftControl::kLongestPause);
}

TEST(DraftControlTest, CostsAreInterpolated) {
  EXPECT_DOUBLE_EQ(DraftCosts().ratio(5, 9), 1);
  EXPECT_DOUBLE_EQ(kComputing.ratio(1, 5), 5);
  EXPECT_DOUBLE_EQ(kComputing.ratio(40, 4), 4) << "behind the last point";
  EXPECT_DOUBLE_EQ(DraftCosts({{1, 2.0}, {9, 1.0}}).ratio(1, 9), 1) << "never less than without";
}

}  // namespace
}  // namespace spillway
