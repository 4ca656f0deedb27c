// SPDX-License-Identifier: Apache-2.0
// Merges neighbouring symbols, the best pair first, in O(n log n); both BPE tokenizers use it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "text/vocabulary.h"

namespace spillway {

inline constexpr TokenId kNoToken = -1;

// A piece [begin, end) of the text in a linked list; `previous` and `next` are indices, -1 for
// none.
struct MergeSymbol {
  uint32_t begin = 0;
  uint32_t end = 0;
  int32_t previous = -1;
  int32_t next = -1;
  TokenId id = kNoToken;
};

struct Merge {
  uint32_t rank = 0;  // the lowest is done first
  TokenId id = kNoToken;
};

// Merges neighbouring symbols until no pair can be merged; among equal ranks the leftmost pair goes
// first. Keeps its memory between words. Not thread-safe.
class Merger {
 public:
  // Symbols are added in the order of the text, none of them empty. After run(), for_each() visits
  // those that are left.
  void clear() { symbols_.clear(); }
  void add(uint32_t begin, uint32_t end, TokenId id) {
    const auto index = static_cast<int32_t>(symbols_.size());
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back({.begin = begin, .end = end, .previous = index - 1, .next = -1, .id = id});
  }

  // `find_merge(left, right)` returns std::optional<Merge> and must depend on the two symbols
  // alone.
  template <class FindMerge>
  void run(FindMerge&& find_merge) {
    queue_.clear();
    const auto candidate = [&](int32_t left) -> std::optional<Candidate> {
      const int32_t right = symbols_[left].next;
      if (right < 0) return std::nullopt;
      const std::optional<Merge> merge = find_merge(symbols_[left], symbols_[right]);
      if (!merge) return std::nullopt;
      return Candidate{
          .rank = merge->rank, .left = left, .end = symbols_[right].end, .id = merge->id};
    };
    for (int32_t i = 0; i < static_cast<int32_t>(symbols_.size()); ++i)
      if (const auto c = candidate(i)) queue_.push_back(*c);
    std::make_heap(queue_.begin(), queue_.end(), std::greater<>());
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
      const Candidate best = queue_.back();
      queue_.pop_back();
      // A candidate is stale if either side was merged since it was queued: a symbol merged into
      // its left neighbour has end 0, and one that grew ends elsewhere.
      MergeSymbol& left = symbols_[best.left];
      if (left.end == 0 || left.next < 0 || symbols_[left.next].end != best.end) continue;
      MergeSymbol& right = symbols_[left.next];
      left.end = right.end;
      left.id = best.id;
      left.next = right.next;
      right.end = 0;
      if (left.next >= 0) symbols_[left.next].previous = best.left;
      for (int32_t i : {left.previous, best.left}) {
        if (i < 0) continue;
        if (const auto c = candidate(i)) {
          queue_.push_back(*c);
          std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
        }
      }
    }
  }

  template <class Visit>
  void for_each(Visit&& visit) const {
    if (symbols_.empty()) return;
    for (int32_t i = 0; i >= 0; i = symbols_[i].next) visit(symbols_[i]);
  }

 private:
  struct Candidate {
    uint32_t rank;
    int32_t left;
    uint32_t end;
    TokenId id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  std::vector<MergeSymbol> symbols_;
  std::vector<Candidate> queue_;
};

}  // namespace spillway
