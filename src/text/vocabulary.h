// SPDX-License-Identifier: Apache-2.0
// A vocabulary as plain data: what a tokenizer is built from, whichever file it came from.
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
  kUnknown,      // stands for what cannot be encoded
  kControl,      // <s>, <|im_end|> ...: found in text only when the caller asks, decodes to nothing
  kUserDefined,  // whole words that are found in text before anything else
  kUnused,
  kByte,  // <0x41>: one byte (SentencePiece)
};

struct VocabToken {
  std::string text;  // normal byte-level tokens are spelled in the byte alphabet, SentencePiece
                     // ones with U+2581
  float score = 0;
  TokenKind kind = TokenKind::kNormal;
  // How control and user-defined tokens are found in text: whether they swallow the white space
  // before and after them, and whether they must stand apart from word characters.
  bool lstrip = false;
  bool rstrip = false;
  bool single_word = false;
};

enum class TokenizerModel {
  kByteLevelBpe,   // text is cut into words by patterns, each word's bytes are merged by rank
  kSentencePiece,  // characters are merged by rank if there are merges, by score if not; bytes are
                   // the fallback
};

struct Vocabulary {
  TokenizerModel model = TokenizerModel::kByteLevelBpe;
  PreSplit pre_split = PreSplit::kGpt2;  // byte-level only
  std::vector<SplitStage> split_stages;  // when pre_split is kCustom
  std::vector<VocabToken> tokens;        // the index is the id
  std::vector<std::string> merges;       // "left right", the best first

  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> eot;
  std::optional<TokenId> unk;  // emitted for what cannot be encoded; without it that is left out
  std::optional<TokenId> pad;
  std::vector<TokenId> end_of_generation;  // in addition to eos, eot and the well-known names

  bool add_bos = false;
  bool add_eos = false;
  // SentencePiece: a space is put before the text, also after every special token; decoding removes
  // the first one. Byte-level: a space is put before text that does not begin with one.
  bool add_space_prefix = false;
  bool space_prefix_first_only = false;  // SentencePiece: not after special tokens
  bool space_prefix_unless_space =
      false;                    // SentencePiece: not before text that begins with a space
  bool split_on_space = false;  // SentencePiece: tokens do not reach over the start of a word
  bool fuse_unk = true;         // SentencePiece: one unk for a run of unknown characters
  bool ignore_merges = false;   // byte-level: a word that is a token needs no merging
  bool normalize_nfc = false;

  std::string chat_template;  // Jinja text, may be empty
};

// Throws Error(kInvalidArgument) with one line that names the field: no tokens, texts or counts
// beyond what any real vocabulary has, ids out of range, BOS or EOS to be added but not there. The
// merges are checked where they are looked up, by the Tokenizer's constructor.
void validate(const Vocabulary& vocabulary);

// "left right" cut at its one separating space; nullopt when it is not of that form.
[[nodiscard]] std::optional<std::pair<std::string_view, std::string_view>> try_split_merge(
    std::string_view merge);

// The byte of "<0x41>"; nullopt for any other text.
[[nodiscard]] std::optional<uint8_t> try_parse_byte_token(std::string_view text);

inline constexpr std::string_view kSpaceSymbol =
    "\xE2\x96\x81";  // U+2581, a space in SentencePiece's vocabularies

}  // namespace spillway
