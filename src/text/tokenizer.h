// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_segment.h"
#include "text/vocabulary.h"

namespace spillway {

struct EncodeOptions {
  bool add_special = true;  // BOS and EOS, where the vocabulary asks for them
  bool parse_special =
      false;  // control tokens spelled out in the text are found; never for what a user typed
};

struct DecodeOptions {
  bool keep_special = false;  // control tokens as they are spelled, instead of nothing
  bool continues = false;     // the ids follow other text: a leading space is kept
};

// Owns its vocabulary. Immutable, so thread-safe; movable.
class Tokenizer {
 public:
  // Throws Error(kInvalidArgument) for a vocabulary that is not sound (see validate(); also merges
  // that do not name two tokens whose joint text is a token), Error(kUnsupported) for a split
  // pattern that cannot be run.
  explicit Tokenizer(Vocabulary vocabulary);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Any bytes are accepted. User-defined tokens are always found. O(n log n) whatever the text
  // looks like; throws Error(kInvalidArgument) for texts of more than 512 MiB.
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // The same ids as for the joint text, except that control tokens are found in markers only.
  // options.parse_special is not used.
  std::vector<TokenId> encode_segments(std::span<const TextSegment> segments,
                                       EncodeOptions options = {}) const;

  // The bytes a token adds to the text, which may be part of a character; empty for control and
  // unknown tokens and for ids that do not exist.
  std::string_view piece(TokenId id) const;
  // The text of the token as the vocabulary spells it; empty for ids that do not exist.
  std::string_view spelling(TokenId id) const;

  // The bytes of all pieces, not necessarily valid UTF-8. Where encoding puts a space before the
  // text, the first one is removed.
  std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;

  // By the text as the vocabulary spells it.
  [[nodiscard]] std::optional<TokenId> try_find(std::string_view text) const;

  const Vocabulary& vocabulary() const;
  size_t vocab_size() const { return vocabulary().tokens.size(); }
  std::optional<TokenId> bos() const { return vocabulary().bos; }
  std::optional<TokenId> eos() const { return vocabulary().eos; }
  // Whether generation stops at this token: eos, eot, those the vocabulary adds, and control tokens
  // with a name that is known to end a turn, such as <|im_end|>.
  bool is_end_of_generation(TokenId id) const;
  // Ascending.
  std::span<const TokenId> end_of_generation() const;
  // Whether decode() starts with removing a space.
  bool strips_leading_space() const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace spillway
