// SPDX-License-Identifier: Apache-2.0
#include "base/run_delay.h"

#include <gtest/gtest.h>

#include <thread>

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

}  // namespace
}  // namespace spillway
