// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

std::string stream(StopMatcher& matcher, std::string_view text, size_t piece) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += piece) out += matcher.push(text.substr(i, piece));
  return out + matcher.flush();
}

TEST(StopMatcherTest, EndsBeforeTheStopStringHoweverTheTextIsCut) {
  for (size_t piece = 1; piece < 20; ++piece) {
    StopMatcher matcher({"END", "\n\n"});
    EXPECT_EQ(stream(matcher, "one EN two ENDED\n\n", piece), "one EN two ");
    EXPECT_TRUE(matcher.stopped());
  }
}

TEST(StopMatcherTest, GivesBackWhatOnlyLookedLikeAStop) {
  StopMatcher matcher({"abcabd"});
  EXPECT_EQ(matcher.push("xabcab"), "x");
  EXPECT_EQ(matcher.push("c"), "abc");
  EXPECT_EQ(matcher.push("abd"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more"), "");
}

TEST(StopMatcherTest, TakesTheStopThatBeginsFirst) {
  StopMatcher matcher({"late", "a"});
  EXPECT_EQ(matcher.push("xx a late"), "xx ");
  StopMatcher overlapping({"bcd", "abcde"});
  EXPECT_EQ(stream(overlapping, "abcde", 1), "a");  // "bcd" is complete first
}

TEST(StopMatcherTest, IgnoresEmptyStops) {
  StopMatcher matcher({""});
  EXPECT_EQ(stream(matcher, "text", 2), "text");
  EXPECT_FALSE(matcher.stopped());
}

}  // namespace
}  // namespace spillway
