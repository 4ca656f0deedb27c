// SPDX-License-Identifier: Apache-2.0
// What the two tokenizer models have in common: plain text between added tokens becomes ids.
#pragma once

#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"

namespace spillway {

// Immutable and thread-safe. Each call is O(n log n) in the text, however it looks.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  // Appends the ids of `fragments`, in order. Any bytes are allowed, also those that are not UTF-8.
  virtual void encode(std::span<const TextFragment> fragments, std::vector<TokenId>& ids) const = 0;
};

// Words that come again in one text are merged once: the cache remembers where their ids are in the
// output.
class WordCache {
 public:
  // True when the word is known; its ids are then appended.
  bool append(std::string_view word, std::vector<TokenId>& ids) const {
    const auto found = places_.find(word);
    if (found == places_.end()) return false;
    for (size_t i = 0; i < found->second.count; ++i) {
      const TokenId id = ids[found->second.begin + i];  // a copy: push_back may move the ids
      ids.push_back(id);
    }
    return true;
  }
  // `word` must stay where it is while the cache is used.
  void remember(std::string_view word, size_t begin, size_t end) {
    if (word.size() <= kMaxWordBytes)
      places_.emplace(word, Place{.begin = begin, .count = end - begin});
  }

 private:
  static constexpr size_t kMaxWordBytes = 64;
  struct Place {
    size_t begin;
    size_t count;
  };
  std::unordered_map<std::string_view, Place> places_;
};

}  // namespace spillway
