// SPDX-License-Identifier: Apache-2.0
#include "text/vocabulary.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/test_vocabulary.h"

namespace spillway {
namespace {

std::string complaint(const Vocabulary& vocabulary) {
  try {
    validate(vocabulary);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(VocabularyTest, AcceptsASoundVocabulary) { EXPECT_EQ(complaint(byte_vocabulary()), ""); }

TEST(VocabularyTest, RefusesAVocabularyWithoutTokens) {
  EXPECT_EQ(complaint({}), "vocabulary: it has no tokens");
}

TEST(VocabularyTest, NamesTheIdThatIsOutOfRange) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.eos = 10'000;
  EXPECT_EQ(complaint(vocabulary), "vocabulary: the id of eos is 10000, but there are 259 tokens");
  vocabulary.eos = -1;
  EXPECT_NE(complaint(vocabulary), "");
  vocabulary.eos = 0;
  vocabulary.end_of_generation = {259};
  EXPECT_NE(complaint(vocabulary), "");
}

TEST(VocabularyTest, RefusesToAddATokenThatDoesNotExist) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.bos.reset();
  vocabulary.add_bos = true;
  EXPECT_EQ(complaint(vocabulary), "vocabulary: add_bos is set, but there is no bos");
}

TEST(VocabularyTest, RefusesTextsThatNoTokenHas) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.tokens[5].text = std::string(100'000, 'x');
  EXPECT_EQ(complaint(vocabulary), "vocabulary: token 5 has 100000 bytes of text (limit 65536)");
  vocabulary = byte_vocabulary();
  add_token(vocabulary, std::string(2'000, 'x'), TokenKind::kUserDefined);
  EXPECT_NE(complaint(vocabulary), "");
}

TEST(VocabularyTest, SplitsAMergeAtItsOneSpace) {
  EXPECT_EQ(try_split_merge("ab c"), (std::pair<std::string_view, std::string_view>("ab", "c")));
  for (std::string_view merge : {"", " ", "ab", " a", "a ", "a  b", "a b c"})
    EXPECT_EQ(try_split_merge(merge), std::nullopt);
}

TEST(VocabularyTest, ReadsByteTokens) {
  EXPECT_EQ(try_parse_byte_token("<0x0A>"), 10);
  EXPECT_EQ(try_parse_byte_token("<0xff>"), 255);
  for (std::string_view text : {"<0x0>", "<0xGG>", "0x0A", "<0x0A", "<0x00A>", ""})
    EXPECT_EQ(try_parse_byte_token(text), std::nullopt);
}

TEST(VocabularyTest, LimitsTheTextThatIsLookedForEverywhere) {
  for (const TokenKind kind :
       {TokenKind::kControl, TokenKind::kUnknown, TokenKind::kUserDefined, TokenKind::kNormal}) {
    Vocabulary vocabulary = byte_vocabulary();
    vocabulary.tokens.resize(vocabulary.tokens.size() + 2000,
                             {.text = std::string(1000, 'x'), .kind = kind});
    EXPECT_EQ(complaint(vocabulary) != "", kind != TokenKind::kNormal);
  }
}

}  // namespace
}  // namespace spillway
