// SPDX-License-Identifier: Apache-2.0
#include "device/recorded_steps.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spillway {
namespace {

class RecordedStepsTest : public testing::Test {
 protected:
  // Returns what happens in a step of `parts` segments; the ops of segment `failing` throw.
  std::string run(int key, int parts, int failing = -1) {
    std::string did;
    std::vector<StepPart> all;
    for (int i = 0; i < parts; ++i) {
      all.push_back({{}, [&, i] {
                       if (i == failing) throw Error(ErrorCode::kDevice, "ops fail");
                       did += std::to_string(i);
                     }});
      if (i > 0) all.back().before = [&] { did += '|'; };
    }
    const auto compute = [&](size_t i) { all[i].ops(); };
    const auto record = [&](size_t i) {
      did += 'r';
      all[i].ops();
      return static_cast<int>(i);
    };
    const auto replay = [&](int part) { did += "again" + std::to_string(part); };
    try {
      steps_.run(key, all, compute, record, replay);
    } catch (const Error&) {
      did += '!';
    }
    return did;
  }

  RecordedSteps<int, int> steps_;
};

TEST_F(RecordedStepsTest, ComputesThenRecordsThenReplays) {
  EXPECT_EQ(run(1, 1), "0");
  EXPECT_EQ(run(1, 1), "r0");
  EXPECT_EQ(run(1, 1), "again0");
  EXPECT_EQ(run(2, 1), "0") << "another step";
  EXPECT_EQ(run(1, 1), "again0");
  EXPECT_EQ(steps_.recordings(), 1);
  EXPECT_EQ(steps_.replays(), 2);
}

TEST_F(RecordedStepsTest, WhatIsBetweenPartsHappensInEveryStep) {
  EXPECT_EQ(run(1, 3), "0|1|2");
  EXPECT_EQ(run(1, 3), "r0|r1|r2");
  EXPECT_EQ(run(1, 3), "again0|again1|again2");
  EXPECT_EQ(steps_.recordings(), 1) << "of all parts together";
}

TEST_F(RecordedStepsTest, WhatFailsLeavesNothingHalfKnown) {
  EXPECT_EQ(run(1, 3, 1), "0|!");
  EXPECT_EQ(run(1, 3), "0|1|2") << "as if it were the first time";
  EXPECT_EQ(run(1, 3, 2), "r0|r1|r!");
  EXPECT_EQ(run(1, 3), "r0|r1|r2") << "all of it again";
  EXPECT_EQ(run(1, 3), "again0|again1|again2");
  EXPECT_EQ(steps_.recordings(), 1);
}

TEST_F(RecordedStepsTest, KeepsTheStepsUsedLast) {
  for (int i = 0; i < 3; ++i) run(0, 1);
  for (int key = 1; key < 200; ++key) {
    run(key, 1);
    ASSERT_EQ(run(0, 1), "again0") << key;
  }
  EXPECT_EQ(run(1, 1), "0") << "used longest ago, and forgotten";
  EXPECT_EQ(run(199, 1), "r0") << "just used";
}

}  // namespace
}  // namespace spillway
