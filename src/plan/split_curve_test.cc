// SPDX-License-Identifier: Apache-2.0
#include "plan/split_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace spillway {
namespace {

using Points = std::vector<std::pair<double, double>>;

TEST(SplitCurveTest, LinesGoThroughWhatWasMeasured) {
  const SplitLine line = fit_line(Points{{0.2, 3}, {0.4, 4}, {0.6, 5}});
  EXPECT_NEAR(line.fixed_s, 2, 1e-12);
  EXPECT_NEAR(line.all_s, 5, 1e-12);
  EXPECT_NEAR(line.at(0.5), 4.5, 1e-12);
}

TEST(SplitCurveTest, NoiseMakesNothingCheaperThanNothing) {
  // If the points fall, the mean gives the cost of a row.
  const SplitLine falling = fit_line(Points{{0.4, 5}, {0.6, 4}});
  EXPECT_EQ(falling.fixed_s, 0);
  EXPECT_NEAR(falling.all_s, 9, 1e-12);
  // This line would begin below zero.
  const SplitLine steep = fit_line(Points{{0.4, 1}, {0.6, 3}});
  EXPECT_EQ(steep.fixed_s, 0);
  EXPECT_NEAR(steep.all_s, 4, 1e-12);
}

TEST(SplitCurveTest, BothEndTogetherAtTheCrossing) {
  const SplitCurve curve{.cpu = {1, 10}, .link = {2, 20}};
  const double share = curve.crossing();
  EXPECT_NEAR(curve.cpu.at(share), curve.link.at(1 - share), 1e-12);
  EXPECT_NEAR(share, 0.7, 1e-12);
  // If one of them is too slow, the other does everything.
  EXPECT_EQ((SplitCurve{.cpu = {100, 10}, .link = {0, 20}}).crossing(), 0);
  EXPECT_EQ((SplitCurve{.cpu = {0, 10}, .link = {100, 20}}).crossing(), 1);
}

TEST(SplitCurveTest, TheNearestNumberOfTokensCounts) {
  const SplitShape shape{DType::kF16, 1024, 512};
  const std::vector<SplitCurve> curves{{.shape = shape, .tokens = 1, .cpu = {0, 1}},
                                       {.shape = shape, .tokens = 64, .cpu = {0, 2}}};
  EXPECT_EQ(try_split_curve(curves, shape, 1)->tokens, 1);
  EXPECT_EQ(try_split_curve(curves, shape, 3)->tokens, 1);
  EXPECT_EQ(try_split_curve(curves, shape, 40)->tokens, 64);
  EXPECT_EQ(try_split_curve(curves, shape, 1024), nullptr);
  EXPECT_EQ(try_split_curve(curves, {DType::kF16, 1024, 256}, 1), nullptr);
}

}  // namespace
}  // namespace spillway
