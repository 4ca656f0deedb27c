// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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
  for (size_t piece = 1; piece < 6; ++piece) {
    StopMatcher overlapping({"bcd", "abcde"});
    EXPECT_EQ(stream(overlapping, "abcde", piece), "a") << "\"bcd\" is complete first";
  }
}

// Compares with the plain definition: the text ends before the stop string that is complete first,
// and of several that are complete at the same character before the one that begins first.
TEST(StopMatcherTest, AgreesWithPlainSearchForManyStops) {
  std::mt19937 random(7);
  const auto draw_text = [&](size_t least, size_t most) {
    std::string text(std::uniform_int_distribution<size_t>(least, most)(random), 'a');
    for (char& c : text) c = "ab\xff"[random() % 3];
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> stops;
    for (int i = 0; i < 20; ++i) stops.push_back(draw_text(4, 9));
    stops.push_back(stops.front());
    const std::string text = draw_text(0, 60);
    std::string expected = text;
    for (size_t end = 0; end <= text.size() && expected == text; ++end) {
      size_t first = std::string::npos;
      for (const std::string& stop : stops) first = std::min(first, text.substr(0, end).find(stop));
      if (first != std::string::npos) expected = text.substr(0, first);
    }
    for (const size_t piece : {1, 3, 60}) {
      StopMatcher matcher(stops);
      EXPECT_EQ(stream(matcher, text, piece), expected) << round;
      EXPECT_EQ(matcher.stopped(), expected != text) << round;
    }
  }
}

TEST(StopMatcherTest, IgnoresEmptyStops) {
  StopMatcher matcher({""});
  EXPECT_EQ(stream(matcher, "text", 2), "text");
  EXPECT_FALSE(matcher.stopped());
}

}  // namespace
}  // namespace spillway
