// SPDX-License-Identifier: Apache-2.0
#include "text/merge.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "base/error.h"
#include "text/merge_table.h"
#include "text/test_vocabulary.h"
#include "text/token_index.h"

namespace spillway {
namespace {

std::vector<std::string> merged(std::string_view word,
                                const std::map<std::string, uint32_t>& ranks) {
  Merger merger;
  for (uint32_t i = 0; i < word.size(); ++i) merger.add(i, i + 1, 0);
  const auto text = [&](uint32_t begin, uint32_t end) {
    return std::string(word.substr(begin, end - begin));
  };
  merger.run([&](const MergeSymbol& left, const MergeSymbol& right) -> std::optional<Merge> {
    const auto found = ranks.find(text(left.begin, right.end));
    if (found == ranks.end()) return std::nullopt;
    return Merge{.rank = found->second, .id = 0};
  });
  std::vector<std::string> pieces;
  merger.for_each([&](const MergeSymbol& s) { pieces.push_back(text(s.begin, s.end)); });
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(MergerTest, MergesTheLowestRankFirst) {
  EXPECT_EQ(merged("abc", {{"ab", 1}, {"bc", 0}}), (Pieces{"a", "bc"}));
  EXPECT_EQ(merged("abc", {{"ab", 0}, {"bc", 1}, {"abc", 2}}), (Pieces{"abc"}));
}

TEST(MergerTest, MergesTheLeftmostOfEqualRanksFirst) {
  EXPECT_EQ(merged("aaaaa", {{"aa", 0}}), (Pieces{"aa", "aa", "a"}));
  EXPECT_EQ(merged("aaaaa", {{"aa", 0}, {"aaaa", 1}}), (Pieces{"aaaa", "a"}));
}

TEST(MergerTest, FollowsANewPairOfLowerRankAtOnce) {
  EXPECT_EQ(merged("abcd", {{"ab", 5}, {"abc", 0}, {"cd", 6}}), (Pieces{"abc", "d"}));
}

TEST(MergerTest, LeavesNothingForAnEmptyWord) { EXPECT_EQ(merged("", {}), Pieces{}); }

TEST(MergerTest, IsFastOnOneLongWord) {
  const std::string word(300'000, 'a');
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(merged(word, {{"aa", 0}, {"aaaa", 1}}).size(), word.size() / 4);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(MergeTableTest, RanksMergesByTheirPlace) {
  const Vocabulary vocabulary = byte_vocabulary({"a b", "ab c"});
  const TokenIndex index(vocabulary.tokens);
  const MergeTable table(vocabulary, index);
  ASSERT_TRUE(table.try_find('a', 'b').has_value());
  EXPECT_EQ(table.try_find('a', 'b')->rank, 0U);
  EXPECT_EQ(table.try_find('a', 'b')->id, 256);
  EXPECT_EQ(table.try_find(256, 'c')->id, 257);
  EXPECT_FALSE(table.try_find('b', 'a').has_value());
  EXPECT_FALSE(table.try_find(kNoToken, 'a').has_value());
}

TEST(MergeTableTest, RefusesMergesOfUnknownTokens) {
  for (const char* merge : {"a b", "nope a", "a nope", "ab", "a  b", " ab", "ab ", ""}) {
    Vocabulary vocabulary = byte_vocabulary();
    vocabulary.merges = {merge};
    const TokenIndex index(vocabulary.tokens);
    EXPECT_THROW(MergeTable(vocabulary, index), Error) << merge;
  }
}

}  // namespace
}  // namespace spillway
