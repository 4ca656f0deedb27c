// SPDX-License-Identifier: Apache-2.0
// Finds control and user-defined tokens in a text before the rest of it is tokenized.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "text/merge.h"
#include "text/regex.h"
#include "text/vocabulary.h"

namespace spillway {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

// A stretch of plain text (never empty), or one token if `token` is set.
struct TextFragment {
  std::string_view text;
  TokenId token = kNoToken;
};

// Immutable and thread-safe; keeps a reference to the vocabulary's tokens.
class AddedTokens {
 public:
  explicit AddedTokens(const std::vector<VocabToken>& tokens);

  // Splits `text` at the tokens in it, searching from the left and taking the longest token at each
  // position. User-defined tokens are found everywhere, control and unknown tokens only where they
  // lie inside one of `special_ranges` (ascending, disjoint).
  std::vector<TextFragment> split(std::string_view text,
                                  std::span<const TextRange> special_ranges) const;

 private:
  struct Node {
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    TokenId token = kNoToken;
    char byte = 0;
  };
  struct Match {
    TokenId token = kNoToken;
    size_t end = 0;
  };

  void insert(std::string_view text, TokenId id);
  int32_t child_of(int32_t node, char byte) const;
  bool is_special(TokenId id) const;
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;
  // Returns the longest token that starts at `begin`; special ones must end by `special_end`.
  Match longest_match(std::string_view text, size_t begin, size_t special_end) const;

  const std::vector<VocabToken>* tokens_;
  std::array<int32_t, 256> roots_;
  std::vector<Node> nodes_;
  std::optional<Regex> word_character_;  // set only if some token must not touch a word character
};

}  // namespace spillway
