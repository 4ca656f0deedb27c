// SPDX-License-Identifier: Apache-2.0
#include "text/pre_split.h"

#include <gtest/gtest.h>

#include "text/word_splitter.h"

namespace spillway {
namespace {

using Words = std::vector<std::string>;

Words split(PreSplit pre_split, std::string_view text) {
  const WordSplitter splitter(pre_split_stages(pre_split));
  WordSplit cut(splitter);
  const auto words = cut.split(text);
  return Words(words.begin(), words.end());
}

TEST(PreSplitTest, Gpt2KeepsContractionsAndTheSpaceBeforeAWord) {
  EXPECT_EQ(split(PreSplit::kGpt2, "I'll go  now!! 123"),
            (Words{"I", "'ll", " go", " ", " now", "!!", " 123"}));
}

TEST(PreSplitTest, Llama3GroupsDigitsByThreeAndIgnoresCaseInContractions) {
  EXPECT_EQ(split(PreSplit::kLlama3, "We'VE 12345\n\n x"),
            (Words{"We", "'VE", " ", "123", "45", "\n\n", " x"}));
}

TEST(PreSplitTest, Qwen2AndSmolLmTakeSingleDigits) {
  EXPECT_EQ(split(PreSplit::kQwen2, "a 12"), (Words{"a", " ", "1", "2"}));
  EXPECT_EQ(split(PreSplit::kSmolLm, "a 12"), (Words{"a", " ", "1", "2"}));
}

TEST(PreSplitTest, FalconSeparatesPunctuationAndGroupsDigits) {
  EXPECT_EQ(split(PreSplit::kFalcon, "x==1 23456"), (Words{"x", "==", "1", " ", "234", "56"}));
}

// Falcon's tokenizer.json has Digits after ByteLevel, and the letter that stands for the second
// byte of these characters is itself a number.
TEST(PreSplitTest, FalconCutsCharactersWhoseBytesLookLikeNumbers) {
  EXPECT_EQ(split(PreSplit::kFalcon, "½"), (Words{"\xC2", "\xBD"}));
  EXPECT_EQ(split(PreSplit::kFalcon, "ò1"), (Words{"\xC3", "\xB2", "1"}));
  EXPECT_EQ(split(PreSplit::kGgufDefault, "½"), (Words{"½"}));
}

TEST(PreSplitTest, NoTextIsLostByAnyPattern) {
  const std::string text = "Hello, wörld's  \t\r\n 12½3 我想 'S…\u180E\u3000ſ!? `$5`\n";
  for (PreSplit pre_split :
       {PreSplit::kNone, PreSplit::kGpt2, PreSplit::kLlama3, PreSplit::kQwen2, PreSplit::kSmolLm,
        PreSplit::kFalcon, PreSplit::kGgufDefault, PreSplit::kGpt4o, PreSplit::kTekken,
        PreSplit::kDeepSeekCoder, PreSplit::kDeepSeekV3}) {
    std::string joined;
    for (const std::string& word : split(pre_split, text)) joined += word;
    EXPECT_EQ(joined, text);
    if (pre_split != PreSplit::kNone) {
      EXPECT_EQ(pre_split_from_stages(pre_split_stages(pre_split)), pre_split);
    }
  }
}

TEST(PreSplitTest, KnowsTheNamesOfGguf) {
  EXPECT_EQ(try_pre_split_from_gguf_name("llama-bpe"), PreSplit::kLlama3);
  EXPECT_EQ(try_pre_split_from_gguf_name("smollm"), PreSplit::kSmolLm);
  EXPECT_EQ(try_pre_split_from_gguf_name("qwen2"), PreSplit::kQwen2);
  EXPECT_EQ(try_pre_split_from_gguf_name("no-such-name"), std::nullopt);
  EXPECT_TRUE(pre_split_traits(PreSplit::kQwen2).normalize_nfc);
  EXPECT_TRUE(pre_split_traits(PreSplit::kLlama3).ignore_merges);
  EXPECT_EQ(try_pre_split_from_gguf_name("glm4"), PreSplit::kGlm4);
  EXPECT_EQ(pre_split_stages(PreSplit::kGlm4), pre_split_stages(PreSplit::kLlama3));
  EXPECT_FALSE(pre_split_traits(PreSplit::kGlm4).ignore_merges);
}

TEST(PreSplitTest, CallsUnknownPatternsCustom) {
  EXPECT_EQ(pre_split_from_stages({{"[a-z]+"}}), PreSplit::kCustom);
  EXPECT_EQ(pre_split_from_stages({}), PreSplit::kNone);
}

}  // namespace
}  // namespace spillway
