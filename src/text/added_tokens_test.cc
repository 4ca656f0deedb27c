// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include "text/test_vocabulary.h"

namespace spillway {
namespace {

// Shows fragments as text: plain text in quotes, tokens by their spelling.
std::string show(const Vocabulary& vocabulary, std::string_view text,
                 std::vector<TextRange> ranges) {
  std::string result;
  for (const TextFragment& fragment : AddedTokens(vocabulary.tokens).split(text, ranges)) {
    if (fragment.token == kNoToken)
      result.append("'").append(fragment.text).append("'");
    else
      result += vocabulary.tokens[static_cast<size_t>(fragment.token)].text;
  }
  return result;
}

std::string show_all(const Vocabulary& vocabulary, std::string_view text) {
  return show(vocabulary, text, {{.begin = 0, .end = text.size()}});
}

Vocabulary with_token(VocabToken token) {
  Vocabulary vocabulary;
  token.kind = TokenKind::kControl;
  vocabulary.tokens.push_back(std::move(token));
  return vocabulary;
}

TEST(AddedTokensTest, FindsControlTokensOnlyInsideTheGivenRanges) {
  const Vocabulary vocabulary = byte_vocabulary();
  EXPECT_EQ(show(vocabulary, "a<s>b<s>", {{.begin = 0, .end = 4}}), "'a'<s>'b<s>'");
  EXPECT_EQ(show(vocabulary, "a<s>b", {{.begin = 0, .end = 3}}), "'a<s>b'");
  EXPECT_EQ(show(vocabulary, "a<s>b", {}), "'a<s>b'");
}

TEST(AddedTokensTest, FindsUserDefinedTokensEverywhere) {
  EXPECT_EQ(show(byte_vocabulary(), "<tool>a<tool>", {}), "<tool>'a'<tool>");
}

TEST(AddedTokensTest, TakesTheLeftmostAndOfThoseTheLongest) {
  Vocabulary vocabulary;
  for (const char* text : {"ab", "abc", "bcde"}) add_token(vocabulary, text, TokenKind::kControl);
  EXPECT_EQ(show_all(vocabulary, "xabcde"), "'x'abc'de'");
  EXPECT_EQ(show_all(vocabulary, "ababd"), "abab'd'");
}

TEST(AddedTokensTest, SwallowsWhiteSpaceWhereATokenAsksForIt) {
  EXPECT_EQ(show_all(with_token({.text = "<m>", .lstrip = true}), "a \u3000<m> b"), "'a'<m>' b'");
  EXPECT_EQ(show_all(with_token({.text = "<m>", .rstrip = true}), "a <m> \n b"), "'a '<m>'b'");
  EXPECT_EQ(show_all(with_token({.text = "<m>", .lstrip = true, .rstrip = true}), " <m> <m> "),
            "<m><m>");
}

TEST(AddedTokensTest, WantsWordsApartWhereATokenAsksForIt) {
  const Vocabulary vocabulary = with_token({.text = "the", .single_word = true});
  EXPECT_EQ(show_all(vocabulary, "the other, the éthe the"), "the' other, 'the' éthe 'the");
}

TEST(AddedTokensTest, GivesNothingForAnEmptyText) {
  EXPECT_EQ(show_all(byte_vocabulary(), ""), "");
}

}  // namespace
}  // namespace spillway
