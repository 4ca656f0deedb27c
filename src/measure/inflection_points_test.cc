// SPDX-License-Identifier: Apache-2.0
#include "measure/inflection_points.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

namespace spillway {
namespace {

// The time of a kernel, known as a + b * tokens.
struct Line {
  double a, b;
  double at(int m) const { return a + b * m; }
};
struct Machine {
  Line gemv, flat, gemm;
  std::map<std::pair<LinearKernel, int>, double> disturbed = {};  // factors of the time
  std::set<int> compared = {};

  double time(LinearKernel kernel, int m) const {
    const Line& line = kernel == LinearKernel::kGemv   ? gemv
                       : kernel == LinearKernel::kFlat ? flat
                                                       : gemm;
    const auto it = disturbed.find({kernel, m});
    return line.at(m) * (it == disturbed.end() ? 1 : it->second);
  }
  InflectionPoints find(bool has_gemm = true) {
    return find_inflection_points(
        [&](LinearKernel first, LinearKernel second, int m) {
          compared.insert(m);
          return KernelTimes{time(first, m), time(second, m)};
        },
        has_gemm);
  }
};

// GEMV takes 1 per token, flat 1 and 0.2 per further token, and GEMM crosses flat at 18.
const Machine kUsual{{0, 1}, {0.8, 0.2}, {2.6, 0.1}};

TEST(InflectionPointsTest, FindsTheCrossing) {
  Machine machine = kUsual;
  const InflectionPoints points = machine.find();
  EXPECT_EQ(points.m1, 2);
  EXPECT_NEAR(points.m2, 18, 1);
}

TEST(InflectionPointsTest, StopsWhenItKnows) {
  Machine machine = kUsual;
  machine.find();
  EXPECT_EQ(*machine.compared.rbegin(), 32);
}

TEST(InflectionPointsTest, GemmThatAlwaysWinsBeginsAtTwo) {
  Machine machine{{0, 1}, {0.8, 0.2}, {0.1, 0.1}};
  EXPECT_EQ(machine.find(), (InflectionPoints{2, 2}));
}

TEST(InflectionPointsTest, GemmThatNeverWinsNeverBegins) {
  Machine machine{{0, 1}, {0.8, 0.2}, {1, 0.2}};
  EXPECT_EQ(machine.find(), (InflectionPoints{2, kNeverInflection}));
}

TEST(InflectionPointsTest, WithoutGemmNothingIsComparedWithIt) {
  Machine machine = kUsual;
  EXPECT_EQ(machine.find(false), (InflectionPoints{2, kNeverInflection}));
  EXPECT_LE(*machine.compared.rbegin(), 4);
}

TEST(InflectionPointsTest, RepeatedGemvMayWin) {
  Machine machine{{0, 1}, {5, 0.2}, {20, 0.1}};  // flat wins from 6.25
  const InflectionPoints points = machine.find();
  EXPECT_GT(points.m1, 4);
  EXPECT_LE(points.m1, 8);
  EXPECT_GT(points.m2, 100);
}

TEST(InflectionPointsTest, GemvIsNotTakenForManyTokens) {
  Machine machine{{0, 0.1}, {1, 1}, {1, 1}};
  EXPECT_EQ(machine.find(false).m1, 17);
}

TEST(InflectionPointsTest, OneDisturbedMeasurementDecidesNothing) {
  for (const int m : {2, 4, 8, 12}) {
    Machine machine = kUsual;
    machine.disturbed[{LinearKernel::kFlat, m}] = 10;
    const InflectionPoints points = machine.find();
    EXPECT_EQ(points.m1, 2) << m;
    EXPECT_GT(points.m2, 12) << m;
    EXPECT_LE(points.m2, 24) << m;
  }
  Machine late = kUsual;
  late.disturbed[{LinearKernel::kGemm, 24}] = 10;
  EXPECT_LE(late.find().m2, 32);
}

TEST(InflectionPointsTest, EqualKernelsStayWithTheFirst) {
  Machine machine{{0, 1}, {0.8, 0.2}, {0.79, 0.1995}};
  EXPECT_EQ(machine.find().m2, kNeverInflection);
}

}  // namespace
}  // namespace spillway
