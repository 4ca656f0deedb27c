// SPDX-License-Identifier: Apache-2.0
#include "serve/completion_logprobs.h"

#include <gtest/gtest.h>

#include <vector>

#include "text/test_vocabulary.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr TokenId kEnd = 256;  // <|end|> of byte_vocabulary()

// Returns the offsets of tokens whose ids are their bytes.
json offsets_of(const std::vector<TokenId>& ids) {
  const Tokenizer tokenizer(byte_vocabulary());
  TextOffset offset;
  CompletionLogprobs lists(&tokenizer, offset);
  for (const TokenId id : ids) lists.add(id, nullptr);
  return json(lists.take())["text_offset"];
}

TEST(CompletionLogprobsTest, TokensThatArePartsOfCharactersHaveTheNamesOfTheirBytes) {
  const Tokenizer tokenizer(byte_vocabulary());
  TextOffset offset;
  CompletionLogprobs lists(&tokenizer, offset);
  const Logprobs first{-0.5F, {{0xF0, -0.5F}, {0xF1, -1.0F}, {'\\', -2.0F}, {0xC3, -3.0F}}};
  lists.add(0xF0, &first);
  const json shown = lists.take();
  EXPECT_EQ(shown["tokens"], json{"bytes:\\xf0"});
  EXPECT_EQ(shown["top_logprobs"][0], json::parse(R"({"bytes:\\xf0":-0.5,"bytes:\\xf1":-1.0,
                                                      "\\":-2.0,"bytes:\\xc3":-3.0})"));
  EXPECT_EQ(token_text(0xF0, &tokenizer), "\\xf0") << "a chat has the bytes beside it";
}

TEST(CompletionLogprobsTest, NoEntryIsLostWhereTwoTokensAreTheSameText) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.tokens.push_back(vocabulary.tokens['a']);
  const auto twin = static_cast<TokenId>(vocabulary.tokens.size() - 1);
  const Tokenizer tokenizer(std::move(vocabulary));
  ASSERT_EQ(tokenizer.piece(twin), "a");
  TextOffset offset;
  CompletionLogprobs lists(&tokenizer, offset);
  const Logprobs both{-0.5F, {{'a', -0.5F}, {twin, -1.0F}}};
  lists.add('a', &both);
  const json top = json(lists.take())["top_logprobs"][0];
  EXPECT_EQ(top.size(), 2U);
  EXPECT_EQ(top["a"], -0.5);
  EXPECT_EQ(top["token_id:" + std::to_string(twin)], -1.0);
}

TEST(CompletionLogprobsTest, OffsetsAreInCharactersOfTheText) {
  EXPECT_EQ(offsets_of({'a', 'b', 'c'}), (json{0, 1, 2}));
  EXPECT_EQ(offsets_of({'a', 0xF0, 0x9F, 0x98, 0x80, 'b', 0xC3, 0xA9, 'c'}),
            (json{0, 1, 1, 1, 1, 2, 3, 3, 4}));
  EXPECT_EQ(offsets_of({'a', kEnd, 'b'}), (json{0, 1, 1})) << "control tokens are no text";
}

TEST(CompletionLogprobsTest, WhatNeverBecomesACharacterCountsAsWhatStandsForIt) {
  EXPECT_EQ(offsets_of({0xF0, 'a'}), (json{0, 1})) << "cut by another character";
  EXPECT_EQ(offsets_of({0xF0, 0x9F, 0xC3, 0xA9, 'a'}), (json{0, 0, 1, 1, 2}));
  EXPECT_EQ(offsets_of({0x80, 0x80, 'a'}), (json{0, 1, 2})) << "nothing begins like that";
}

TEST(CompletionLogprobsTest, AnAnswerDoesNotCompleteItsPromptsLastCharacter) {
  TextOffset offset;
  EXPECT_EQ(offset.advance("a\xF0"), 0U);
  offset.end_part();
  EXPECT_EQ(offset.advance("\x9F"), 2U);
}

}  // namespace
}  // namespace spillway
