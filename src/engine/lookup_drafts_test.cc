// SPDX-License-Identifier: Apache-2.0
#include "engine/lookup_drafts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace spillway {
namespace {

using Tokens = std::vector<TokenId>;

Tokens propose(const Tokens& tokens, int most = 4) { return LookupDrafts().propose(tokens, most); }

TEST(LookupDraftsTest, ProposesWhatFollowedTheLastTokensBefore) {
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 6, 9, 2, 3}), (Tokens{4, 5, 6, 9}));
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 6, 9, 2, 3}, 2), (Tokens{4, 5}));
}

TEST(LookupDraftsTest, ProposesNothingForWhatIsNew) {
  EXPECT_TRUE(propose({}).empty());
  EXPECT_TRUE(propose({1}).empty());
  EXPECT_TRUE(propose({1, 1}).empty());
  EXPECT_TRUE(propose({1, 2, 3, 4, 1}).empty()) << "a single token says too little";
  EXPECT_TRUE(propose({1, 2, 1, 2}, 0).empty());
}

TEST(LookupDraftsTest, TakesTheLongestMatchAndOfEqualOnesTheLatest) {
  EXPECT_EQ(propose({7, 2, 3, 4, 8, 2, 3, 5, 7, 2, 3}, 1), Tokens{4}) << "7 2 3 stood there";
  EXPECT_EQ(propose({7, 2, 3, 4, 8, 2, 3, 5, 9, 2, 3}, 1), Tokens{5});
}

TEST(LookupDraftsTest, GoesOnRepeatingWhatRepeatsItself) {
  EXPECT_EQ(propose({5, 5, 5}, 4), (Tokens{5, 5, 5, 5}));
  EXPECT_EQ(propose({1, 2, 3, 1, 2, 3, 1, 2}, 5), (Tokens{3, 1, 2, 3, 1}));
}

// The index grows with the text, and what it finds must not depend on earlier calls.
TEST(LookupDraftsTest, FindsTheSameTokenByTokenAndAtOnce) {
  std::mt19937 random(1);
  Tokens tokens;
  LookupDrafts growing;
  int found = 0;
  for (int i = 0; i < 2000; ++i) {
    tokens.push_back(static_cast<TokenId>(random() % 12));
    const int most = static_cast<int>(random() % 9);
    if (random() % 3 == 0) continue;
    const Tokens drafts = growing.propose(tokens, most);
    EXPECT_EQ(drafts, propose(tokens, most));
    found += drafts.empty() ? 0 : 1;
  }
  EXPECT_GT(found, 500);
}

}  // namespace
}  // namespace spillway
