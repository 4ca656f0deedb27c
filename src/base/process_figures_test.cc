// SPDX-License-Identifier: Apache-2.0
#include "base/process_figures.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <vector>

namespace spillway {
namespace {

TEST(ProcessFiguresTest, FollowWhatTheProcessTakes) {
  const ProcessFigures before = process_figures();
  const std::vector<char> memory(64 << 20, 'x');
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  volatile double sum = 0;
  while (process_figures().cpu_s <= before.cpu_s) {
    for (int i = 0; i < 100'000; ++i) sum = sum + i;
  }
  const ProcessFigures after = process_figures();
  ::close(file);
  EXPECT_GE(after.resident_bytes, before.resident_bytes + memory.size() / 2);
  EXPECT_GE(after.virtual_bytes, after.resident_bytes);
  EXPECT_EQ(after.open_files, before.open_files + 1);
  EXPECT_GT(after.most_files, after.open_files);
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_GT(after.start_time_s, now - 3600 * 24);
  EXPECT_LE(after.start_time_s, now + 2) << "the system counts whole seconds";
  EXPECT_EQ(after.start_time_s, before.start_time_s);
}

}  // namespace
}  // namespace spillway
