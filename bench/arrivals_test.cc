// SPDX-License-Identifier: Apache-2.0
#include "bench/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace spillway {
namespace {

class ArrivalsTest : public testing::Test {
 protected:
  Arrivals of(const std::string& text) const {
    const std::string path = testing::TempDir() + "arrivals_" +
                             testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ofstream(path) << text;
    return {path, 100, 1};
  }
};

TEST_F(ArrivalsTest, ComeInOrderAndThenAgain) {
  Arrivals arrivals = of("0.5 3 7\n2 1 9\n");
  EXPECT_EQ(arrivals.next_at_s(), 0.5);
  const Arrivals::Arrival first = arrivals.take();
  EXPECT_EQ(first.request.max_tokens, 7);
  EXPECT_THAT(first.request.prompt, testing::SizeIs(3));
  EXPECT_THAT(first.request.prompt,
              testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(100))));
  EXPECT_EQ(arrivals.next_at_s(), 2);
  EXPECT_EQ(arrivals.take().request.max_tokens, 9);
  EXPECT_EQ(arrivals.next_at_s(), std::nullopt);
  EXPECT_EQ(arrivals.came_again(), 0U);
  EXPECT_EQ(arrivals.take().request.max_tokens, 7);
  EXPECT_EQ(arrivals.came_again(), 1U);
}

TEST_F(ArrivalsTest, WhatIsAskedHasLines) {
  Arrivals arrivals = of("0\t3\t7\tName it:\\n\\na \\\\n b\n0 1 1\n0 1 1 \\\n");
  EXPECT_EQ(arrivals.take().request.asked, "Name it:\n\na \\n b");
  EXPECT_EQ(arrivals.take().request.asked, "");
  EXPECT_EQ(arrivals.take().request.asked, "\\");
}

TEST_F(ArrivalsTest, AFileThatIsNoneIsRefusedWithItsLine) {
  for (const char* text : {"", "0 1 1\nwords\n", "0 0 1\n", "0 1\n"})
    EXPECT_THROW(of(text), Error) << text;
}

}  // namespace
}  // namespace spillway
