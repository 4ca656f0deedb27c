// SPDX-License-Identifier: Apache-2.0
#include "base/kernel_times.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>
#include <vector>

#include "base/cpu_list.h"
#include "base/test_scoped_folder.h"

namespace spillway {
namespace {

TEST(RunDelayTest, GrowsForAnyThreadThatAsks) {
  const RunDelay delay = RunDelay::of_this_thread();
  const auto first = delay.try_nanoseconds();
  if (!first) GTEST_SKIP() << "this kernel does not say how long threads wait for a processor";
  EXPECT_GE(*first, 0);
  std::thread([&] { EXPECT_GE(delay.try_nanoseconds().value_or(-1), *first); }).join();
}

TEST(RunDelayTest, NoThreadHasNone) { EXPECT_FALSE(RunDelay().try_nanoseconds()); }

TEST(IdleSecondsTest, AddsUpTheProcessorsAskedFor) {
  const ScopedFolder folder(std::filesystem::temp_directory_path());
  const auto path = folder.path() / "stat";
  std::ofstream(path) << "cpu  9 9 9 900 90 0 0\ncpu0 1 2 3 400 20 0 0\ncpu1 1 2 3 100 5 0 0\n"
                         "cpu12 1 2 3 70 5 0 0\nintr 1 2 3\n";
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  EXPECT_DOUBLE_EQ(try_idle_seconds(std::vector{0}, path).value(), 420 / ticks);
  EXPECT_DOUBLE_EQ(try_idle_seconds(std::vector{1, 12}, path).value(), 180 / ticks);
  EXPECT_FALSE(try_idle_seconds(std::vector{2}, path));
  EXPECT_FALSE(try_idle_seconds(std::vector<int>{}, path));
  EXPECT_FALSE(try_idle_seconds(std::vector{0}, folder.path() / "none"));
}

TEST(IdleSecondsTest, ThisMachineSays) {
  const auto idle = try_idle_seconds(allowed_cpus());
  if (!idle) GTEST_SKIP() << "this kernel does not say how long processors were idle";
  EXPECT_GE(*idle, 0);
}

}  // namespace
}  // namespace spillway
