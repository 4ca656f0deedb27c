// SPDX-License-Identifier: Apache-2.0
#include "text/word_piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "text/word_piece_files.h"

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> words_of(std::string_view text, const BertWordRules& rules = {}) {
  std::vector<std::string> words;
  for_each_bert_word(text, rules, [&](std::string_view word) {
    words.emplace_back(word);
    return true;
  });
  return words;
}

constexpr std::string_view kVocabTxt =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\nriver\n##s\nun\n##aff\n##able\n,\n\u6cb3\ncafe\n";
WordPiece small(const std::string& config = "") {
  return WordPiece(word_piece_from_vocab_txt(kVocabTxt, config, "folder"));
}

std::string message_of(const std::string& tokenizer_json) {
  try {
    word_piece_from_tokenizer_json(tokenizer_json, "folder");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string tokenizer_json(const std::string& model_type, const std::string& normalizer) {
  return R"({"model":{"type":")" + model_type +
         R"(","unk_token":"[UNK]","vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"a":3,"##b":4,"A":6}},
         "normalizer":{"type":")" +
         normalizer + R"(","lowercase":false},"pre_tokenizer":{"type":"BertPreTokenizer"},
         "post_processor":{"type":"BertProcessing","sep":["[SEP]",2],"cls":["[CLS]",1]}})";
}

TEST(BertWordsTest, WhiteSpacePunctuationAndIdeographsAreBorders) {
  EXPECT_THAT(words_of("The river's wide.\u00a0Yes!"),
              ElementsAre("the", "river", "'", "s", "wide", ".", "yes", "!"));
  EXPECT_THAT(words_of("a\u6cb3\u6d41b"), ElementsAre("a", "\u6cb3", "\u6d41", "b"));
  EXPECT_THAT(words_of(" \t\n"), ElementsAre());
}

TEST(BertWordsTest, DropsAccentsAndControlCharacters) {
  EXPECT_THAT(words_of("Caf\u00e9 na\u0308ive \u0130"), ElementsAre("cafe", "naive", "i"));
  EXPECT_THAT(words_of(std::string_view("a\0b\u200dc\x7f \xff", 9)), ElementsAre("abc"));
}

TEST(BertWordsTest, RulesMayBeSwitchedOff) {
  EXPECT_THAT(words_of("Caf\u00e9", {.strip_accents = false}), ElementsAre("caf\u00e9"));
  EXPECT_THAT(words_of("Caf\u00e9", {.lowercase = false}), ElementsAre("Cafe"));
  EXPECT_THAT(words_of("a\u6cb3", {.split_ideographs = false}), ElementsAre("a\u6cb3"));
}

TEST(BertWordsTest, LooksNoFurtherThanItIsAskedTo) {
  int words = 0;
  for_each_bert_word("a b c d", {}, [&](std::string_view) { return ++words < 2; });
  EXPECT_EQ(words, 2);
}

TEST(WordPieceTest, TakesTheLongestPieces) {
  EXPECT_THAT(small().encode("Unaffable rivers, the CAF\u00c9", 100),
              ElementsAre(2, 7, 8, 9, 5, 6, 10, 4, 12, 3));
}

TEST(WordPieceTest, AWordWithoutPiecesIsUnknownAsAWhole) {
  EXPECT_THAT(small().encode("riverx the", 100), ElementsAre(2, 1, 4, 3));
  EXPECT_THAT(small().encode("river" + std::string(200, 's'), 100), ElementsAre(2, 1, 3));
}

TEST(WordPieceTest, LongTextsAreCutAtTheEnd) {
  EXPECT_THAT(small().encode("the unaffable river", 5), ElementsAre(2, 4, 7, 8, 3));
  EXPECT_THAT(small().encode("the", 2), ElementsAre(2, 3));
  EXPECT_THAT(small().encode("", 2), ElementsAre(2, 3));
}

TEST(WordPieceTest, OfAPieceThatIsThereTwiceTheLastCounts) {
  const WordPiece pieces(word_piece_from_vocab_txt("[UNK]\n[CLS]\n[SEP]\na\n##b\na\n##b", "", "f"));
  EXPECT_THAT(pieces.encode("ab", 9), ElementsAre(1, 5, 6, 2));
}

TEST(WordPieceTest, OlderFilesSayWhetherCaseCounts) {
  EXPECT_THAT(small(R"({"do_lower_case": false})").encode("The river", 9), ElementsAre(2, 1, 5, 3));
}

TEST(WordPieceTest, ReadsTokenizerJson) {
  const WordPiece pieces(
      word_piece_from_tokenizer_json(tokenizer_json("WordPiece", "BertNormalizer"), "folder"));
  EXPECT_THAT(pieces.encode("ab A", 9), ElementsAre(1, 3, 4, 6, 2));
  EXPECT_EQ(pieces.size(), 7U);
}

TEST(WordPieceTest, OtherTokenizersAreRefusedByName) {
  EXPECT_THAT(message_of(tokenizer_json("BPE", "BertNormalizer")),
              HasSubstr("folder/tokenizer.json.model.type is BPE"));
  EXPECT_THAT(message_of(tokenizer_json("WordPiece", "NFC")), HasSubstr("normalizer.type is NFC"));
  EXPECT_THAT(message_of("{}"), HasSubstr("model is missing"));
  EXPECT_THROW(word_piece_from_vocab_txt("a\nb\n", "", "folder"), Error);
}

}  // namespace
}  // namespace spillway
