// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf_tokenizer_keys.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/vocabulary_from_files.h"

namespace spillway {
namespace {

// Returns a SentencePiece vocabulary whose merges can be expressed as scores.
Vocabulary sentence_piece() {
  Vocabulary v;
  v.model = TokenizerModel::kSentencePiece;
  const auto add = [&](const char* text, TokenKind kind = TokenKind::kNormal) {
    v.tokens.push_back({.text = text, .kind = kind});
  };
  add("<unk>", TokenKind::kUnknown);
  add("<s>", TokenKind::kControl);
  add("</s>", TokenKind::kControl);
  add("<0x41>", TokenKind::kByte);
  for (const char* text : {"a", "b", "c", "ab", "abc", "bc"}) add(text);
  v.merges = {"a b", "b c", "ab c", "a bc"};
  v.unk = 0;
  v.bos = 1;
  v.eos = 2;
  v.add_bos = true;
  v.add_space_prefix = true;
  v.fuse_unk = true;
  return v;
}

Vocabulary byte_level() {
  Vocabulary v;
  for (const char* text : {"a", "b", "ab"}) v.tokens.push_back({.text = text});
  v.tokens.push_back({.text = "<|end|>", .kind = TokenKind::kControl, .lstrip = true});
  v.tokens.push_back({.text = "word", .kind = TokenKind::kUserDefined, .single_word = true});
  v.merges = {"a b"};
  v.pre_split = PreSplit::kLlama3;
  v.ignore_merges = true;
  v.eos = 3;
  v.chat_template = "{{ messages }}";
  return v;
}

struct Written {
  Vocabulary vocabulary;
  std::vector<std::string> notes;
  Metadata keys;
};
Written there_and_back(const Vocabulary& vocabulary, int64_t rows) {
  ModelFiles files;
  files.metadata = Metadata("test.gguf");
  Written written;
  written.notes = add_tokenizer_keys(vocabulary, rows, files.metadata);
  written.vocabulary = vocabulary_from_files(files);
  written.keys = files.metadata;
  return written;
}

void expect_equal(const Vocabulary& got, const Vocabulary& want) {
  EXPECT_EQ(got.model, want.model);
  EXPECT_EQ(got.pre_split, want.pre_split);
  EXPECT_EQ(got.split_stages, want.split_stages);
  EXPECT_EQ(got.merges, want.merges);
  EXPECT_EQ(got.bos, want.bos);
  EXPECT_EQ(got.eos, want.eos);
  EXPECT_EQ(got.unk, want.unk);
  EXPECT_EQ(got.pad, want.pad);
  EXPECT_EQ(got.add_bos, want.add_bos);
  EXPECT_EQ(got.add_eos, want.add_eos);
  EXPECT_EQ(got.add_space_prefix, want.add_space_prefix);
  EXPECT_EQ(got.space_prefix_first_only, want.space_prefix_first_only);
  EXPECT_EQ(got.space_prefix_unless_space, want.space_prefix_unless_space);
  EXPECT_EQ(got.split_on_space, want.split_on_space);
  EXPECT_EQ(got.fuse_unk, want.fuse_unk);
  EXPECT_EQ(got.ignore_merges, want.ignore_merges);
  EXPECT_EQ(got.normalize_nfc, want.normalize_nfc);
  EXPECT_EQ(got.chat_template, want.chat_template);
  ASSERT_GE(got.tokens.size(), want.tokens.size());
  for (size_t i = 0; i < want.tokens.size(); ++i) {
    EXPECT_EQ(got.tokens[i].text, want.tokens[i].text);
    EXPECT_EQ(got.tokens[i].kind, want.tokens[i].kind);
    EXPECT_EQ(got.tokens[i].lstrip, want.tokens[i].lstrip);
    EXPECT_EQ(got.tokens[i].rstrip, want.tokens[i].rstrip);
    EXPECT_EQ(got.tokens[i].single_word, want.tokens[i].single_word);
  }
}

TEST(GgufTokenizerKeysTest, VocabulariesComeBackAsTheyWere) {
  for (const Vocabulary& vocabulary : {sentence_piece(), byte_level()}) {
    const Written written = there_and_back(vocabulary, std::ssize(vocabulary.tokens));
    expect_equal(written.vocabulary, vocabulary);
    EXPECT_TRUE(written.notes.empty()) << written.notes.front();
  }
}

TEST(GgufTokenizerKeysTest, SoDoesWhatOthersDoNotKnow) {
  Vocabulary sentence = sentence_piece();
  sentence.space_prefix_first_only = sentence.space_prefix_unless_space = true;
  sentence.split_on_space = sentence.normalize_nfc = true;
  sentence.fuse_unk = false;
  Vocabulary custom = byte_level();
  custom.pre_split = PreSplit::kCustom;
  custom.split_stages = {{"[ab]+"}, {"x", true}};
  custom.unk = 3;
  Vocabulary whole = byte_level();
  whole.pre_split = PreSplit::kNone;
  Vocabulary merging = byte_level();
  merging.ignore_merges = false;
  for (const Vocabulary& vocabulary : {sentence, custom, whole, merging}) {
    const Written written = there_and_back(vocabulary, std::ssize(vocabulary.tokens));
    expect_equal(written.vocabulary, vocabulary);
    ASSERT_FALSE(written.notes.empty());
    EXPECT_NE(written.notes.front().find("llama.cpp"), std::string::npos);
  }
}

TEST(GgufTokenizerKeysTest, ThereIsATokenForEveryRow) {
  Vocabulary vocabulary = sentence_piece();
  vocabulary.tokens[5].text.clear();
  vocabulary.tokens[5].kind = TokenKind::kUnused;
  vocabulary.merges = {};
  const Written written = there_and_back(vocabulary, 20);
  ASSERT_EQ(written.vocabulary.tokens.size(), 20U);
  EXPECT_EQ(written.vocabulary.tokens[5].text, "[PAD5]");
  EXPECT_EQ(written.vocabulary.tokens[19].text, "[PAD19]");
  EXPECT_EQ(written.vocabulary.tokens[19].kind, TokenKind::kUnused);
  EXPECT_EQ(written.keys.get_float_array("tokenizer.ggml.scores").size(), 20U);
  const auto notes = there_and_back(sentence_piece(), 5).notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("10 tokens for 5 rows"), std::string::npos) << notes[0];
}

TEST(GgufTokenizerKeysTest, ScoresStandForMergesOnlyWhereTheyCan) {
  const Vocabulary exact = sentence_piece();
  const Written written = there_and_back(exact, std::ssize(exact.tokens));
  const auto scores = written.keys.get_float_array("tokenizer.ggml.scores");
  EXPECT_GT(scores[7], scores[9]);  // ab before bc
  EXPECT_GT(scores[9], scores[8]);  // bc before abc
  // Not every pair is listed, or the pairs of a token are not in a row, but no text shows it.
  Vocabulary lacks_a_pair = exact;
  lacks_a_pair.merges = {"a b", "b c", "ab c"};
  Vocabulary mixed_order = exact;
  mixed_order.merges = {"a b", "ab c", "b c", "a bc"};
  for (const Vocabulary& vocabulary : {lacks_a_pair, mixed_order})
    EXPECT_TRUE(there_and_back(vocabulary, std::ssize(vocabulary.tokens)).notes.empty());
  // Scores merge a and bc to abc, which these merges cannot.
  Vocabulary differs = exact;
  differs.merges = {"b c", "ab c"};
  const auto notes = there_and_back(differs, std::ssize(differs.tokens)).notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("scores"), std::string::npos) << notes[0];
}

TEST(GgufTokenizerKeysTest, EveryEndOfGenerationIsKept) {
  Vocabulary vocabulary = byte_level();
  vocabulary.end_of_generation = {3, 0, 1, 2};
  const Written written = there_and_back(vocabulary, std::ssize(vocabulary.tokens));
  EXPECT_EQ(written.vocabulary.eot, 0);
  EXPECT_EQ(written.vocabulary.end_of_generation, (std::vector<TokenId>{1, 2}));
}

TEST(GgufTokenizerKeysTest, OwnKeysThatMakeNoSenseAreRefused) {
  for (const int32_t id : {-1, 99}) {
    ModelFiles files;
    files.metadata = Metadata("test.gguf");
    add_tokenizer_keys(byte_level(), 5, files.metadata);
    // byte_level() has flags already, so the key is another one.
    files.metadata.add("spillway.tokenizer.unknown_token_id", int64_t{id});
    EXPECT_THROW(vocabulary_from_files(files), Error);
  }
}

}  // namespace
}  // namespace spillway
