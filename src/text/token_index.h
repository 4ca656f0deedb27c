// SPDX-License-Identifier: Apache-2.0
// Maps a token's text, as the vocabulary spells it, to its id.
#pragma once

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/merge.h"
#include "text/vocabulary.h"

namespace spillway {

// Refers to the texts of `tokens`, which must stay where they are. Immutable and thread-safe. If
// two tokens have the same text, the first one is found; tokens with empty text are not found.
class TokenIndex {
 public:
  explicit TokenIndex(const std::vector<VocabToken>& tokens) : tokens_(&tokens) {
    ids_.reserve(tokens.size());
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (tokens[id].text.empty()) continue;
      ids_.emplace(tokens[id].text, static_cast<TokenId>(id));
      longest_ = std::max(longest_, tokens[id].text.size());
    }
  }

  // Returns kNoToken if there is none.
  TokenId find(std::string_view text) const {
    if (text.size() > longest_) return kNoToken;
    const auto found = ids_.find(text);
    return found == ids_.end() ? kNoToken : found->second;
  }

  // Like find(), but finds only tokens that plain text may become: no control, unknown or byte
  // tokens.
  TokenId find_plain(std::string_view text) const {
    const TokenId id = find(text);
    if (id == kNoToken) return kNoToken;
    const TokenKind kind = (*tokens_)[static_cast<size_t>(id)].kind;
    const bool plain =
        kind == TokenKind::kNormal || kind == TokenKind::kUserDefined || kind == TokenKind::kUnused;
    return plain ? id : kNoToken;
  }

 private:
  const std::vector<VocabToken>* tokens_;
  std::unordered_map<std::string_view, TokenId> ids_;
  size_t longest_ = 0;
};

}  // namespace spillway
