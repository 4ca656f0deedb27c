// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "base/log_event.h"

namespace spillway {
namespace {

TEST(LogTest, KeepsAPayloadOnOneLine) {
  testing::internal::CaptureStderr();
  log_warning("prompt was {}", "a\nb\x1b[31m");
  const std::string out = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  EXPECT_NE(out.find("a\\nb\\x1b[31m"), std::string::npos) << out;
}

// This runs in a process of its own because the log format is global.
void log_as_json() {
  set_log_format(LogFormat::kJson);
  log_event(LogLevel::kWarning, "said \"a\"\nb",
            {{"event", "test"},
             {"count", int64_t{-3}},
             {"seconds", 0.25},
             {"never", std::numeric_limits<double>::infinity()},
             {"texts", std::vector<std::string>{"x\\", "\xff"}},
             {"none", std::vector<std::string>{}}});
  log_warning("plain");
  std::exit(0);
}

TEST(LogDeathTest, LinesForProgramsHaveFieldsOfTheirOwn) {
  EXPECT_EXIT(log_as_json(), testing::ExitedWithCode(0),
              R"("level":"warning","message":"said \\"a\\"\\\\nb","event":"test","count":-3,)"
              R"("seconds":0.25,"never":null,"texts":\["x\\\\","\\\\xff"\],"none":\[\]\})"
              "\n.*\"message\":\"plain\"\\}");
}

TEST(LogTest, PeopleReadTheMessageAlone) {
  testing::internal::CaptureStderr();
  log_event(LogLevel::kWarning, "it happened", {{"event", "test"}});
  const std::string out = testing::internal::GetCapturedStderr();
  EXPECT_NE(out.find("it happened\n"), std::string::npos) << out;
  EXPECT_EQ(out.find("event"), std::string::npos) << out;
}

TEST(LogTest, DropsWhatIsBelowTheLevel) {
  testing::internal::CaptureStderr();
  log_info("not shown at the default level");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace spillway
