// SPDX-License-Identifier: Apache-2.0
#include "base/fault_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

class FaultPointsTest : public ::testing::Test {
 protected:
  ~FaultPointsTest() override { disarm_faults(); }
};

std::string error_of_arming(const char* text) {
  try {
    arm_faults(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST_F(FaultPointsTest, LeavesResultsAloneWhenNothingIsArmed) {
  disarm_faults();
  EXPECT_EQ(with_fault("a", 10), 10);
  EXPECT_EQ(with_fault("a", -ENOENT), -ENOENT);
  EXPECT_EQ(injected_error("a"), 0);
  EXPECT_EQ(fault_hits("a"), 0u);
}

TEST_F(FaultPointsTest, FailsTheNthHitAndOnlyThat) {
  arm_fault("a", 3, FaultKind::kEio);
  EXPECT_EQ(with_fault("a", 10), 10);
  EXPECT_EQ(with_fault("b", 10), 10);
  EXPECT_EQ(with_fault("a", 10), 10);
  EXPECT_EQ(with_fault("a", 10), -EIO);
  EXPECT_EQ(with_fault("a", 10), 10);
  EXPECT_EQ(fault_hits("a"), 4u);
  EXPECT_EQ(fault_hits("b"), 1u);
}

TEST_F(FaultPointsTest, CountsFromWhenItWasArmed) {
  arm_fault("a", 1, FaultKind::kEio);
  EXPECT_EQ(with_fault("a", 1), -EIO);
  EXPECT_EQ(with_fault("a", 1), 1);
  arm_fault("a", 2, FaultKind::kEnospc, 2);
  EXPECT_EQ(with_fault("a", 1), 1);
  EXPECT_EQ(with_fault("a", 1), -ENOSPC);
  EXPECT_EQ(with_fault("a", 1), -ENOSPC);
  EXPECT_EQ(with_fault("a", 1), 1);
}

TEST_F(FaultPointsTest, ShortHalvesATransferAndLeavesErrors) {
  arm_fault("a", 1, FaultKind::kShort, 3);
  EXPECT_EQ(with_fault("a", 4096), 2048);
  EXPECT_EQ(with_fault("a", 1), 0);
  EXPECT_EQ(with_fault("a", -EIO), -EIO);
}

TEST_F(FaultPointsTest, ReadsSeveralFromText) {
  arm_faults("io.read:2:eio,io.write:1+:short");
  EXPECT_EQ(with_fault("io.read", 8), 8);
  EXPECT_EQ(with_fault("io.read", 8), -EIO);
  EXPECT_EQ(with_fault("io.write", 8), 4);
  EXPECT_EQ(with_fault("io.write", 8), 4);
}

TEST_F(FaultPointsTest, RefusesTextThatMeansNothing) {
  EXPECT_THAT(error_of_arming("io.read"), HasSubstr("point:N:kind"));
  EXPECT_THAT(error_of_arming("3:eio"), HasSubstr("point:N:kind"));
  EXPECT_THAT(error_of_arming(":3:eio"), HasSubstr("point:N:kind"));
  EXPECT_THAT(error_of_arming("io.read:0:eio"), HasSubstr("number from 1"));
  EXPECT_THAT(error_of_arming("io.read:x:eio"), HasSubstr("number from 1"));
  EXPECT_THAT(error_of_arming("io.read::eio"), HasSubstr("number from 1"));
  EXPECT_THAT(error_of_arming("a:1:eio,io.read:1:flood"), HasSubstr("io.read:1:flood"));
  EXPECT_EQ(with_fault("a", 8), 8) << "the good part must not be armed alone";
}

// This test runs in a process of its own because the environment is read once.
TEST_F(FaultPointsTest, TheFirstPointReadsTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ::setenv("SPILLWAY_FAULTS", "io.read:2:eio", 1);
  EXPECT_EXIT(
      {
        const bool first = with_fault("io.read", 8) == 8;
        std::exit(first && with_fault("io.read", 8) == -EIO ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  ::setenv("SPILLWAY_FAULTS", "nonsense", 1);
  EXPECT_EXIT(std::exit(with_fault("io.read", 8) == 8 ? 0 : 1), ::testing::ExitedWithCode(0),
              "SPILLWAY_FAULTS is ignored");
  EXPECT_EXIT(
      {
        try {
          arm_faults_from_environment();
        } catch (const Error&) {
          std::exit(7);
        }
      },
      ::testing::ExitedWithCode(7), "");
  ::unsetenv("SPILLWAY_FAULTS");
}

}  // namespace
}  // namespace spillway
