// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_load.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr const char* kStat =
    "cpu  100 10 50 800 40 1 2 3 7 0\n"
    "cpu0 50 5 25 400 20 0 1 1 3 0\n"
    "cpu1 50 5 25 400 20 1 1 2 4 0\n"
    "intr 12345\n";

TEST(CpuLoadTest, ReadsWhatTheSystemCounts) {
  const auto times = try_parse_cpu_times(kStat);
  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->busy, 100 + 10 + 50 + 1 + 2 + 3);
  EXPECT_EQ(times->total, times->busy + 800 + 40);
  EXPECT_EQ(times->processors, 2);
}

TEST(CpuLoadTest, RefusesWhatIsSomethingElse) {
  for (const char* text : {"", "cpu", "cpu  1 2 3\ncpu0 1\n", "cpu  a b c d e f g h\ncpu0 1\n",
                           "intr 5\n", "cpu  1 2 3 4 5 6 7 8\n"})
    EXPECT_FALSE(try_parse_cpu_times(text).has_value()) << text;
}

TEST(CpuLoadTest, AMachineIsBusyFromATwentiethOn) {
  const CpuTimes before{.busy = 1000, .total = 10'000, .processors = 8};
  const CpuLoad idle = cpu_load(before, {.busy = 1010, .total = 11'000, .processors = 8});
  EXPECT_DOUBLE_EQ(idle.busy_processors, 0.08);
  EXPECT_FALSE(idle.disturbs_measuring());
  const CpuLoad busy = cpu_load(before, {.busy = 1125, .total = 11'000, .processors = 8});
  EXPECT_DOUBLE_EQ(busy.busy_processors, 1);
  EXPECT_TRUE(busy.disturbs_measuring());
  EXPECT_EQ(cpu_load(before, before).busy_processors, 0);
}

TEST(CpuLoadTest, ALittleWorkOnFewProcessorsIsNotBusy) {
  EXPECT_FALSE((CpuLoad{.busy_processors = 0.1, .processors = 1}).disturbs_measuring());
  EXPECT_TRUE((CpuLoad{.busy_processors = 0.2, .processors = 1}).disturbs_measuring());
}

}  // namespace
}  // namespace spillway
