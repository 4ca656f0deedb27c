// SPDX-License-Identifier: Apache-2.0
#include "text/pre_split.h"

#include <gtest/gtest.h>

#include "text/regex.h"

namespace spillway {
namespace {

using Words = std::vector<std::string>;

Words split(PreSplit pre_split, std::string_view text) {
  std::vector<std::string_view> words = {text};
  for (const std::string& pattern : pre_split_patterns(pre_split)) {
    const Regex regex(pattern);
    RegexSearch search(regex);
    std::vector<std::string_view> next;
    for (std::string_view word : words) split_by_matches(search, word, next);
    words = std::move(next);
  }
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

TEST(PreSplitTest, NoTextIsLostByAnyPattern) {
  const std::string text = "Hello, wörld's  \t\r\n 12½3 我想 'S…\u180E\u3000ſ!? `$5`\n";
  for (PreSplit pre_split : {PreSplit::kNone, PreSplit::kGpt2, PreSplit::kLlama3, PreSplit::kQwen2,
                             PreSplit::kSmolLm, PreSplit::kFalcon, PreSplit::kGpt4o,
                             PreSplit::kTekken, PreSplit::kDeepSeekCoder, PreSplit::kDeepSeekV3}) {
    std::string joined;
    for (const std::string& word : split(pre_split, text)) joined += word;
    EXPECT_EQ(joined, text);
    if (pre_split != PreSplit::kNone) {
      EXPECT_EQ(pre_split_from_patterns(pre_split_patterns(pre_split)), pre_split);
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
}

TEST(PreSplitTest, CallsUnknownPatternsCustom) {
  EXPECT_EQ(pre_split_from_patterns({"[a-z]+"}), PreSplit::kCustom);
  EXPECT_EQ(pre_split_from_patterns({}), PreSplit::kNone);
}

}  // namespace
}  // namespace spillway
