// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_json.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/tokenizer.h"

namespace spillway {
namespace {

constexpr std::string_view kByteLevel = R"({
  "added_tokens": [{"id": 6, "content": "<e>", "special": true}, {"id": 7, "content": "<t>", "rstrip": true}],
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]},
  "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<e>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<e>": {"id": "<e>", "ids": [6], "tokens": ["<e>"]}}}]},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "c": 5},
            "merges": ["a b", ["Ġ", "ab"]]}})";

constexpr std::string_view kLlamaLike = R"({
  "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "pre_tokenizer": null,
  "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": {"<unk>": 0, "<0x41>": 1, "▁": 2, "a": 3, "▁a": 4}, "merges": [["▁", "a"]]}})";

Vocabulary read(std::string_view json, std::string_view config = "") {
  return vocabulary_from_tokenizer_json(json, config, "model");
}

std::string complaint(std::string_view json, std::string_view config = "") {
  try {
    Tokenizer tokenizer(read(json, config));
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  }
  return "";
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result(text);
  result.replace(result.find(from), from.size(), to);
  return result;
}

TEST(TokenizerJsonTest, ReadsAByteLevelTokenizer) {
  const Vocabulary vocabulary = read(kByteLevel);
  EXPECT_EQ(vocabulary.model, TokenizerModel::kByteLevelBpe);
  EXPECT_EQ(vocabulary.pre_split, PreSplit::kSmolLm);
  EXPECT_TRUE(vocabulary.normalize_nfc);
  EXPECT_TRUE(vocabulary.add_bos);
  EXPECT_EQ(vocabulary.bos, 6);
  EXPECT_EQ(vocabulary.tokens[6].kind, TokenKind::kControl);
  EXPECT_EQ(vocabulary.tokens[7].kind, TokenKind::kUserDefined);
  EXPECT_TRUE(vocabulary.tokens[7].rstrip);
  EXPECT_EQ(Tokenizer(vocabulary).encode("ab ab<t> c"), (std::vector<TokenId>{6, 3, 4, 7, 5}));
}

TEST(TokenizerJsonTest, ReadsATokenizerWithByteFallback) {
  const Tokenizer tokenizer(read(kLlamaLike));
  EXPECT_EQ(tokenizer.vocabulary().model, TokenizerModel::kSentencePiece);
  EXPECT_EQ(tokenizer.encode("aA"), (std::vector<TokenId>{4, 1}));
  EXPECT_EQ(tokenizer.encode("BC"), (std::vector<TokenId>{2, 0}));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{4, 1}), "aA");
}

TEST(TokenizerJsonTest, ReadsMetaspace) {
  const std::string json =
      replaced(replaced(kLlamaLike, R"({"type": "Prepend", "prepend": "▁"},)", ""),
               R"("pre_tokenizer": null)",
               R"("pre_tokenizer": {"type": "Metaspace", "replacement": "▁",
                                        "prepend_scheme": "first", "split": false})");
  const Vocabulary vocabulary = read(json);
  EXPECT_TRUE(vocabulary.add_space_prefix);
  EXPECT_TRUE(vocabulary.space_prefix_first_only);
  EXPECT_FALSE(vocabulary.split_on_space);
}

TEST(TokenizerJsonTest, RunsAPatternItDoesNotKnow) {
  const std::string json =
      replaced(kByteLevel, R"({"type": "Digits", "individual_digits": true})",
               R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"})");
  const Vocabulary vocabulary = read(json);
  EXPECT_EQ(vocabulary.pre_split, PreSplit::kCustom);
  EXPECT_EQ(vocabulary.split_stages.front().pattern, "a");
  EXPECT_EQ(Tokenizer(vocabulary).encode("ab"), (std::vector<TokenId>{6, 0, 1}));
}

TEST(TokenizerJsonTest, TakesNamesAndTheTemplateFromTheConfiguration) {
  const Vocabulary vocabulary =
      read(kByteLevel, R"({"eos_token": {"content": "<e>"}, "bos_token": "<t>",
      "add_bos_token": false, "chat_template": [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(vocabulary.eos, 6);
  EXPECT_EQ(vocabulary.bos, 6);  // tokenizer.json decides, not the configuration
  EXPECT_TRUE(vocabulary.add_bos);
  EXPECT_EQ(vocabulary.chat_template, "D");
}

TEST(TokenizerJsonTest, NamesTheFieldThatIsWrong) {
  EXPECT_EQ(complaint("").find("model/tokenizer.json: not valid JSON at byte 0"), 0U);
  EXPECT_EQ(complaint("{}"), "model/tokenizer.json.model is missing");
  EXPECT_EQ(complaint("[]"), "model/tokenizer.json must be an object");
  EXPECT_EQ(complaint(R"({"model": 3})"), "model/tokenizer.json.model must be an object");
  EXPECT_EQ(complaint(replaced(kByteLevel, "\"BPE\"", "\"Uni\\ngram\"")),
            "model/tokenizer.json.model.type is Uni\\ngram; only BPE is supported");
  EXPECT_EQ(complaint(replaced(kByteLevel, "\"a b\"", "7")),
            "model/tokenizer.json.model.merges[0] must be a string or two strings");
  EXPECT_EQ(complaint(replaced(kByteLevel, "\"a b\"", "\"a z\"")),
            "vocabulary: merge 0 names a token that does not exist");
  EXPECT_EQ(
      complaint(replaced(kByteLevel, "\"c\": 5", "\"c\": 2000000000")),
      "model/tokenizer.json.model.vocab: the id 2000000000 does not fit a vocabulary of 8 tokens");
  EXPECT_EQ(complaint(replaced(kByteLevel, "\"b\": 1", "\"a\": 1")),
            "model/tokenizer.json.model.vocab: token 'a' is there twice");
  EXPECT_EQ(complaint(replaced(kByteLevel, "NFC", "Lowercase")),
            "model/tokenizer.json.normalizer: normalizer Lowercase is not supported");
  EXPECT_EQ(complaint(replaced(kByteLevel, "\"ids\": [6]", "\"ids\": [66]")),
            "model/tokenizer.json.post_processor.processors[1].single[0] names a token that does "
            "not exist");
  EXPECT_EQ(complaint(kByteLevel, R"({"chat_template": 5})"),
            "model/tokenizer_config.json.chat_template must be a string");
}

TEST(TokenizerJsonTest, SurvivesEveryTruncationAndManyMutations) {
  for (std::string_view json : {kByteLevel, kLlamaLike}) {
    for (size_t length = 0; length < json.size(); ++length)
      EXPECT_NE(complaint(json.substr(0, length)), "");
    for (size_t at = 0; at < json.size(); ++at) {
      for (char c : {'0', '"', '}', '[', 'x', '\0', '\xFF'}) {
        std::string mutated(json);
        mutated[at] = c;
        complaint(mutated);
      }
    }
  }
}

TEST(TokenizerJsonTest, SurvivesDeepNesting) {
  constexpr size_t kDepth = 1'000'000;
  EXPECT_NE(complaint(std::string(kDepth, '[')), "");
  EXPECT_NE(complaint(std::string(kDepth, '[') + std::string(kDepth, ']')), "");
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += R"({"type": "Sequence", "normalizers": [)";
    for (int i = 0; i < depth; ++i) text += "]}";
    return complaint(replaced(kByteLevel, R"({"type": "NFC"})", text));
  };
  EXPECT_NE(nested(20).find("sequences nested too deeply"), std::string::npos) << nested(20);
  EXPECT_NE(nested(20'000).find("is nested deeper than 64"), std::string::npos) << nested(20'000);
}

TEST(TokenizerJsonTest, BoundsEveryFileBeforeItIsHeld) {
  const std::string deep(1'000'000, '[');
  EXPECT_EQ(complaint(kByteLevel, deep),
            "model/tokenizer_config.json: JSON at byte 64 is nested deeper than 64");
  try {
    vocabulary_from_gpt2_files(deep, "", "", "model");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "model/vocab.json: JSON at byte 64 is nested deeper than 64");
  }
}

TEST(Gpt2FilesTest, KnowsOptByItsFirstTokens) {
  const Vocabulary vocabulary = vocabulary_from_gpt2_files(
      R"({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6})",
      "#version: 0.2\na b\n", "", "opt");
  EXPECT_EQ(vocabulary.bos, 2);
  EXPECT_EQ(vocabulary.pad, 1);
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(tokenizer.encode("abb"), (std::vector<TokenId>{2, 6, 5}));
  EXPECT_TRUE(tokenizer.is_end_of_generation(2));
}

TEST(Gpt2FilesTest, FollowsTheConfiguration) {
  const Vocabulary vocabulary = vocabulary_from_gpt2_files(
      R"({"a": 0, "<|endoftext|>": 1})", "",
      R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "add_bos_token": false})",
      "gpt2");
  EXPECT_EQ(vocabulary.eos, 1);
  EXPECT_FALSE(vocabulary.add_bos);
  EXPECT_EQ(vocabulary.tokens[1].kind, TokenKind::kControl);
}

TEST(Gpt2FilesTest, RefusesBadFiles) {
  EXPECT_THROW(vocabulary_from_gpt2_files("[]", "", "", "x"), Error);
  EXPECT_THROW(vocabulary_from_gpt2_files(R"({"a": "b"})", "", "", "x"), Error);
  EXPECT_THROW(vocabulary_from_gpt2_files(R"({"a": -1})", "", "", "x"), Error);
  EXPECT_THROW(Tokenizer(vocabulary_from_gpt2_files(R"({"a": 0})", "a b\n", "", "x")), Error);
}

}  // namespace
}  // namespace spillway
