// SPDX-License-Identifier: Apache-2.0
// The interface of the two tokenizer models, which turn the plain text between added tokens into
// ids.
#pragma once

#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"

namespace spillway {

// Immutable and thread-safe. Each call is O(n log n) in the length of any text.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  // Appends the ids of `fragments`, in order. Any bytes are allowed, also those that are not UTF-8.
  virtual void encode(std::span<const TextFragment> fragments, std::vector<TokenId>& ids) const = 0;
};

// Remembers where in the output the ids of a word are, so that a word that occurs again in the same
// text is copied instead of merged again.
class WordCache {
 public:
  // Returns true and appends the ids if the word is known.
  bool append(std::string_view word, std::vector<TokenId>& ids) const {
    const auto found = places_.find(word);
    if (found == places_.end()) return false;
    for (size_t i = 0; i < found->second.count; ++i) {
      const TokenId id = ids[found->second.begin + i];  // a copy: push_back may move the ids
      ids.push_back(id);
    }
    return true;
  }
  // `word` must stay at its address while the cache is used.
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
