// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace spillway {
namespace {

TEST(LogTest, KeepsAPayloadOnOneLine) {
  testing::internal::CaptureStderr();
  log_warning("prompt was {}", "a\nb\x1b[31m");
  const std::string out = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  EXPECT_NE(out.find("a\\nb\\x1b[31m"), std::string::npos) << out;
}

TEST(LogTest, DropsWhatIsBelowTheLevel) {
  testing::internal::CaptureStderr();
  log_info("not shown at the default level");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace spillway
