// SPDX-License-Identifier: Apache-2.0
// Maps two neighbouring tokens to the token that replaces them, for the merges of a vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "text/merge.h"
#include "text/token_index.h"

namespace spillway {

// An open-addressing hash table, because every pair of neighbours in a text is looked up in it.
// Immutable and thread-safe.
class MergeTable {
 public:
  // A merge's rank is its place in vocabulary.merges. Throws Error(kInvalidArgument), with the
  // index of the merge, if it does not name two known tokens whose joint text is a token.
  MergeTable(const Vocabulary& vocabulary, const TokenIndex& index);

  [[nodiscard]] std::optional<Merge> try_find(TokenId left, TokenId right) const {
    if (left < 0 || right < 0) return std::nullopt;
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return std::nullopt;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };

  static uint64_t key_of(TokenId left, TokenId right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const {
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ULL;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBULL;
    return (key ^ (key >> 31)) & (slots_.size() - 1);
  }
  void insert(TokenId left, TokenId right, Merge merge);

  std::vector<Slot> slots_;
};

}  // namespace spillway
