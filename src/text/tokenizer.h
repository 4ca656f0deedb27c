// SPDX-License-Identifier: Apache-2.0
// Converts text to token ids and back.
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
  bool add_special = true;  // add BOS and EOS if the vocabulary says so
  // Recognize control tokens spelled out in the text; never for text that a user typed.
  bool parse_special = false;
};

struct DecodeOptions {
  bool keep_special = false;  // show control tokens by their spelling instead of leaving them out
  bool continues = false;     // the ids follow other text, so a leading space is kept
};

// Owns its vocabulary. Immutable, so thread-safe; movable.
class Tokenizer {
 public:
  // Throws Error(kInvalidArgument) for a vocabulary that is not sound (see validate(); also if a
  // merge does not name two tokens whose joint text is a token), and Error(kUnsupported) for a
  // split pattern that cannot be run.
  explicit Tokenizer(Vocabulary vocabulary);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Accepts any bytes. User-defined tokens are always recognized. O(n log n) for any text; throws
  // Error(kInvalidArgument) for texts of more than 512 MiB.
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // Returns the same ids as for the joint text, except that control tokens are recognized in
  // markers only. options.parse_special is ignored.
  std::vector<TokenId> encode_segments(std::span<const TextSegment> segments,
                                       EncodeOptions options = {}) const;

  // Returns the bytes that a token adds to the text, which may be part of a character; empty for
  // control and unknown tokens and for ids that do not exist.
  std::string_view piece(TokenId id) const;
  // Returns the token's text as the vocabulary spells it; empty for ids that do not exist.
  std::string_view spelling(TokenId id) const;

  // Concatenates the bytes of all pieces; the result need not be valid UTF-8. If encoding puts a
  // space before the text, the first space is removed.
  std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;

  // Finds a token by its text as the vocabulary spells it.
  [[nodiscard]] std::optional<TokenId> try_find(std::string_view text) const;

  const Vocabulary& vocabulary() const;
  size_t vocab_size() const { return vocabulary().tokens.size(); }
  std::optional<TokenId> bos() const { return vocabulary().bos; }
  std::optional<TokenId> eos() const { return vocabulary().eos; }
  // Whether generation stops at this token: eos, eot, those the vocabulary lists, and control
  // tokens with a name that is known to end a turn, such as <|im_end|>.
  bool is_end_of_generation(TokenId id) const;
  // Returns the ids of these tokens in ascending order.
  std::span<const TokenId> end_of_generation() const;
  // Whether decode() removes a leading space.
  bool strips_leading_space() const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace spillway
