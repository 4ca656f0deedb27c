// SPDX-License-Identifier: Apache-2.0
// A vocabulary as plain data, from which a tokenizer is built, whichever file it came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/pre_split.h"
#include "text/token_id.h"

namespace spillway {

enum class TokenKind {
  kNormal,
  kUnknown,      // stands for text that cannot be encoded
  kControl,      // <s>, <|im_end|> ...: found in text only on request, decodes to nothing
  kUserDefined,  // whole words that are found in text before anything else
  kUnused,
  kByte,  // <0x41>: one byte (SentencePiece)
};

struct VocabToken {
  std::string text;  // normal byte-level tokens are spelled in the byte alphabet, SentencePiece
                     // ones with U+2581
  float score = 0;
  TokenKind kind = TokenKind::kNormal;
  // Control and user-defined tokens may remove the white space before (`lstrip`) or after them
  // (`rstrip`), or match only if no word character touches them (`single_word`).
  bool lstrip = false;
  bool rstrip = false;
  bool single_word = false;
};

enum class TokenizerModel {
  kByteLevelBpe,   // patterns split text into words; each word's bytes are merged by rank
  kSentencePiece,  // characters are merged by rank if there are merges, else by score; bytes are
                   // the fallback
};

struct Vocabulary {
  TokenizerModel model = TokenizerModel::kByteLevelBpe;
  PreSplit pre_split = PreSplit::kGpt2;  // byte-level only
  std::vector<SplitStage> split_stages;  // when pre_split is kCustom
  std::vector<VocabToken> tokens;        // the index is the id
  std::vector<std::string> merges;       // "left right", in the order of their rank

  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> eot;
  std::optional<TokenId> unk;  // emitted for text that cannot be encoded; unset: nothing is
  std::optional<TokenId> pad;
  std::vector<TokenId> end_of_generation;  // in addition to eos, eot and those known by their names

  bool add_bos = false;
  bool add_eos = false;
  // For SentencePiece, puts a space before the text and after every special token; decoding removes
  // the first one. For byte-level BPE, puts a space before text that does not begin with one.
  bool add_space_prefix = false;
  bool space_prefix_first_only = false;    // SentencePiece: not after special tokens
  bool space_prefix_unless_space = false;  // SentencePiece: not before text with a leading space
  bool split_on_space = false;  // SentencePiece: no token reaches past the start of a word
  bool fuse_unk = true;         // SentencePiece: one unk for a run of unknown characters
  bool ignore_merges = false;   // byte-level: a word that is a token is not merged
  bool normalize_nfc = false;

  std::string chat_template;  // Jinja text, may be empty
};

// Throws Error(kInvalidArgument) with one line that names the field, for: no tokens, texts or
// counts beyond those of any real vocabulary, ids out of range, BOS or EOS to be added but not set.
// Merges are checked where they are looked up, by the Tokenizer's constructor.
void validate(const Vocabulary& vocabulary);

// Splits "left right" at its single space; returns nullopt for any other form.
[[nodiscard]] std::optional<std::pair<std::string_view, std::string_view>> try_split_merge(
    std::string_view merge);

// Returns the byte of "<0x41>", or nullopt for any other text.
[[nodiscard]] std::optional<uint8_t> try_parse_byte_token(std::string_view text);

inline constexpr std::string_view kSpaceSymbol =
    "\xE2\x96\x81";  // U+2581, a space in SentencePiece's vocabularies

}  // namespace spillway
