// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_vocabulary.h"
#include "text/utf8.h"

namespace spillway {
namespace {

TEST(IncrementalDetokenizerTest, WaitsForTheRestOfACharacter) {
  const Tokenizer tokenizer(byte_vocabulary());
  IncrementalDetokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push('a'), "a");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push(0x98), "");
  EXPECT_EQ(detokenizer.push(0x81), "\U0001F601");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(IncrementalDetokenizerTest, ReplacesWhatNeverBecomesACharacter) {
  const Tokenizer tokenizer(byte_vocabulary());
  IncrementalDetokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(0xC3), "");
  EXPECT_EQ(detokenizer.push('a'), "\uFFFDa");
  EXPECT_EQ(detokenizer.push(0xFF), "\uFFFD");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(IncrementalDetokenizerTest, RemovesTheFirstSpaceUnlessTheTextContinues) {
  const Tokenizer tokenizer(piece_vocabulary({"▁a"}));
  const TokenId a = *tokenizer.try_find("▁a");
  IncrementalDetokenizer fresh(tokenizer);
  EXPECT_EQ(fresh.push(*tokenizer.bos()), "");
  EXPECT_EQ(fresh.push(a), "a");
  EXPECT_EQ(fresh.push(a), " a");
  IncrementalDetokenizer continued(tokenizer, {.continues = true});
  EXPECT_EQ(continued.push(a), " a");
}

TEST(IncrementalDetokenizerTest, AgreesWithDecodeOnRandomTokens) {
  const Tokenizer bytes(byte_vocabulary({"Ġ a", "ð Ł", "Ã ©"}));
  const Tokenizer pieces(piece_vocabulary({"▁", "▁a", "é", "我"}));
  std::mt19937 random(1);
  for (const Tokenizer* tokenizer : {&bytes, &pieces}) {
    for (int round = 0; round < 2000; ++round) {
      const DecodeOptions options{.keep_special = round % 2 == 0, .continues = round % 3 == 0};
      IncrementalDetokenizer detokenizer(*tokenizer, options);
      std::vector<TokenId> ids(random() % 12);
      std::string text;
      for (TokenId& id : ids) {
        id = static_cast<TokenId>(random() % tokenizer->vocab_size());
        const std::string part = detokenizer.push(id);
        EXPECT_TRUE(is_valid_utf8(part));
        text += part;
      }
      text += detokenizer.flush();
      EXPECT_EQ(text, replace_invalid_utf8(tokenizer->decode(ids, options)));
    }
  }
}

}  // namespace
}  // namespace spillway
