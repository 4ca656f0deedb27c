// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

std::vector<std::string_view> split(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern);
  RegexSearch search(regex);
  std::vector<std::string_view> pieces;
  split_by_matches(search, text, pieces);
  return pieces;
}

using Pieces = std::vector<std::string_view>;

TEST(RegexTest, SplitsIntoMatchesAndWhatLiesBetween) {
  EXPECT_EQ(split("[0-9]", "a12b"), (Pieces{"a", "1", "2", "b"}));
  EXPECT_EQ(split("x*", "ab"), (Pieces{"ab"}));
  EXPECT_EQ(split("x", ""), Pieces{});
}

TEST(RegexTest, ReadsSpaceWordAndHexDigitAsOnigurumaDoes) {
  EXPECT_EQ(split(R"(\s)", "a\u180Eb\u0085c"), (Pieces{"a\u180Eb", "\u0085", "c"}));
  EXPECT_EQ(split(R"([^\s]+)", "a\u180Eb\u3000c"), (Pieces{"a\u180Eb", "\u3000", "c"}));
  EXPECT_EQ(split(R"(\w+)", "e\u0301-_"), (Pieces{"e\u0301", "-", "_"}));
  EXPECT_EQ(split(R"(\h+)", "g0f g"), (Pieces{"g", "0f", " g"}));
  EXPECT_EQ(split(R"(\S)", " a"), (Pieces{" ", "a"}));
}

TEST(RegexTest, KnowsLettersOfNewUnicodeVersions) {
  EXPECT_EQ(split(R"(\p{L}+)", "a\U00031350b"), (Pieces{"a\U00031350b"}));
  EXPECT_EQ(split(R"([^\p{L}]+)", "!\U00031350"), (Pieces{"!", "\U00031350"}));
}

TEST(RegexTest, KeepsBackslashesAndPosixClassesInPlace) {
  EXPECT_EQ(translate_oniguruma(R"([\]\\s[:alpha:]x])"), R"([\]\\s[:alpha:]x])");
  EXPECT_EQ(translate_oniguruma(R"([]a]\R)"), R"([]a]\R)");
}

TEST(RegexTest, RefusesWhatItCannotRun) {
  for (std::string_view pattern : {"(", "[a", "[a&&b]", "[a[b]]", R"(\p{NoSuchScript})", "a\\"})
    EXPECT_THROW(Regex{pattern}, Error) << pattern;
  EXPECT_THROW(Regex{std::string(100'000, 'a')}, Error);
  EXPECT_THROW(Regex{std::string(5'000, '(') + std::string(5'000, ')')}, Error);
}

TEST(RegexTest, GivesUpOnAnExponentialPatternInsteadOfHanging) {
  EXPECT_THROW(split("(a+)+(?=z)", std::string(64, 'a') + "y"), Error);
}

TEST(RegexTest, SearchesDeeplyWithoutOverflowingAStack) {
  const std::string text(1'000'000, 'a');
  EXPECT_EQ(split("(?:(?:a|b)(?:a|c))+", text).size(), 1U);
  EXPECT_EQ(split(R"(\s+(?!\S)|\s+)", std::string(3'000'000, ' ') + "x").size(), 3U);
}

}  // namespace
}  // namespace spillway
