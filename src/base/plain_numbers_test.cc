// SPDX-License-Identifier: Apache-2.0
#include "base/plain_numbers.h"

#include <gtest/gtest.h>

#include <limits>

namespace spillway {
namespace {

TEST(PlainNumbersTest, OneThingHasNoPlural) {
  EXPECT_EQ(format_count(1, "request"), "1 request");
  EXPECT_EQ(format_count(0, "request"), "0 requests");
  EXPECT_EQ(format_count(32, "sequence"), "32 sequences");
}

TEST(PlainNumbersTest, NumbersHaveNoExponent) {
  EXPECT_EQ(format_number(0.5249, 3), "0.525");
  EXPECT_EQ(format_number(14123.4, 3), "14123");
  EXPECT_EQ(format_number(43256.7, 4), "43257");
  EXPECT_EQ(format_number(4.591, 4), "4.591");
  EXPECT_EQ(format_number(1.5, 4), "1.5");
  EXPECT_EQ(format_number(2, 4), "2");
  EXPECT_EQ(format_number(0.0000123, 3), "0.0000123");
  EXPECT_EQ(format_number(9.9996, 3), "10");
  EXPECT_EQ(format_number(-0.25, 3), "-0.25");
  EXPECT_EQ(format_number(0, 3), "0");
  EXPECT_EQ(format_number(std::numeric_limits<double>::infinity(), 3), "inf");
}

TEST(PlainNumbersTest, LongTimesAreInMinutesAndHours) {
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(0.00025), "0.25 ms");
  EXPECT_EQ(format_seconds(0.107), "0.107 s");
  EXPECT_EQ(format_seconds(19), "19 s");
  EXPECT_EQ(format_seconds(599.4), "599 s");
  EXPECT_EQ(format_seconds(1410), "23 min 30 s");
  EXPECT_EQ(format_seconds(14100), "3 h 55 min");
  EXPECT_EQ(format_seconds(1e6), "277 h 47 min");
}

}  // namespace
}  // namespace spillway
