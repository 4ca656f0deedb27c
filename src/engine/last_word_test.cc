// SPDX-License-Identifier: Apache-2.0
#include "engine/last_word.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/test_vocabulary.h"

namespace spillway {
namespace {

std::string text_of(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  return tokenizer.decode(ids, {.continues = true});
}

TEST(LastWordTest, TheSpaceGoesWithTheWord) {
  const Tokenizer tokenizer(byte_vocabulary({"c a", "ca t", "Ġ cat", "Ġ t", "Ġt h", "Ġth e"}));
  const Passage passage = split_last_word(tokenizer, "see the cat");
  EXPECT_EQ(text_of(tokenizer, passage.context), "see the");
  EXPECT_EQ(text_of(tokenizer, passage.last_word), " cat");
  EXPECT_EQ(passage.last_word.size(), 1U);
  EXPECT_EQ(tokenizer.spelling(passage.last_word[0]), "Ġcat");
}

TEST(LastWordTest, WordsOfSeveralTokensAreKeptWhole) {
  const Tokenizer tokenizer(piece_vocabulary({"▁t", "▁th", "▁the", "▁", "c", "a", "t"}));
  const Passage passage = split_last_word(tokenizer, "the cat");
  EXPECT_EQ(text_of(tokenizer, passage.last_word), " cat");
  EXPECT_EQ(passage.context.size(), 1U);
  EXPECT_GT(passage.last_word.size(), 1U);
}

TEST(LastWordTest, BosComesFirstAndEosNeverCounts) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.add_bos = vocabulary.add_eos = true;
  const Tokenizer tokenizer(vocabulary);
  const Passage passage = split_last_word(tokenizer, "ab c");
  EXPECT_EQ(passage.context, (std::vector<TokenId>{*tokenizer.bos(), 'a', 'b'}));
  EXPECT_EQ(passage.last_word, (std::vector<TokenId>{' ', 'c'}));
}

// Together the two parts are the tokens of the whole text, even if the word's first token has some
// of the text before the word.
TEST(LastWordTest, PartsAreTheTokensOfTheWholeText) {
  Vocabulary vocabulary = piece_vocabulary({"b▁", "b▁c", "▁", "a", "b", "c"});
  vocabulary.add_space_prefix = false;
  const Tokenizer tokenizer(vocabulary);
  const Passage passage = split_last_word(tokenizer, "ab c");
  EXPECT_EQ(passage.context.size(), 1U);
  EXPECT_EQ(text_of(tokenizer, passage.context), "a");
  std::vector<TokenId> joined = passage.context;
  joined.insert(joined.end(), passage.last_word.begin(), passage.last_word.end());
  EXPECT_EQ(joined, tokenizer.encode("ab c", {.add_special = false}));
}

TEST(LastWordTest, RefusesTextsWithoutALastWord) {
  const Tokenizer tokenizer(byte_vocabulary());
  for (const char* text : {"", "word", " word", "word ", "two words "}) {
    EXPECT_THROW(split_last_word(tokenizer, text), Error) << text;
  }
}

}  // namespace
}  // namespace spillway
