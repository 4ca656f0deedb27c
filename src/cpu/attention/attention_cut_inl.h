// SPDX-License-Identifier: Apache-2.0
// Helpers shared by the kernels that do a cut a few KV heads at a time: its keys, where its pages
// are, prefetching them in time. For x86, and for ARM without matrix multiplication of bytes.
//
// A cut is done for a few KV heads after the others: their keys, softmax, their values. Meanwhile
// the next data are prefetched evenly: the values while keys are multiplied, and the next heads'
// keys (or the next cut's) while values are added up. So a thread waits for neither, and prefetches
// as much in either half of its work.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/attention/attention_args.h"

namespace spillway {
namespace {

constexpr float kNoScore = -3.0e38F;  // below any score
constexpr int64_t kCutPages = kSplitKeys / kPageTokens;
constexpr int64_t kMostGroups = 4;  // of 64 elements, in a head of 256

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Keys of a cut, relative to its first.
struct Keys {
  int64_t begin, end;
};
// Returns the keys of the cut at `base` that the query at `position` attends to; none if begin >=
// end.
static inline Keys seen_keys(const AttentionArgs& a, int64_t base, int64_t position) {
  const int64_t first = a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
  return {larger(first - base, 0), smaller(position + 1 - base, kSplitKeys)};
}
// Returns those of query i of a KV head.
static inline Keys seen_by(const AttentionArgs& a, const AttentionTile& tile, int64_t base,
                           int64_t i) {
  return seen_keys(a, base, tile.position + i / a.group);
}

// The keys of a cut that some query of the tile attends to, as keys of the cut and as pages of the
// sequence.
struct Cut {
  int64_t base;
  Keys keys;
  int64_t first_page, end_page;

  bool empty() const { return keys.begin >= keys.end; }
  int64_t pages() const { return empty() ? 0 : end_page - first_page; }
  // Returns the position of a page's first key in the cut.
  int64_t key_of(int64_t page) const { return page * kPageTokens - base; }
};
static inline Cut cut_at(const AttentionArgs& a, const AttentionTile& tile, int64_t base) {
  const Keys keys{seen_keys(a, base, tile.position).begin,
                  smaller(tile.position + tile.rows - base, kSplitKeys)};
  return {base, keys, (base + keys.begin) / kPageTokens,
          (base + keys.end + kPageTokens - 1) / kPageTokens};
}

static inline const uint8_t* page_of_keys(const AttentionArgs& a, const AttentionTile& tile,
                                          int64_t page, int64_t head) {
  return a.k + (tile.blocks[page] * a.kv_heads + tile.kv_head + head) * a.layout.bytes;
}
static inline const uint8_t* page_of_values(const AttentionArgs& a, const AttentionTile& tile,
                                            int64_t page, int64_t head) {
  const bool home = page < tile.home_pages;
  const int64_t block = home ? tile.home[page] : tile.blocks[page];
  return (home ? a.home_v : a.v) + (block * a.kv_heads + tile.kv_head + head) * a.layout.bytes;
}

static inline const float* query_at(const AttentionArgs& a, const AttentionTile& tile, int64_t head,
                                    int64_t i) {
  return a.q + (tile.first_row + i / a.group) * a.q_stride +
         ((tile.kv_head + head) * a.group + i % a.group) * a.head_dim;
}

// KV heads of a tile whose keys, and then whose values, are done together.
struct Heads {
  int64_t first, count;

  int64_t end() const { return first + count; }
};

// Pages of neighbouring KV heads are neighbours in memory. One head alone would be read as single
// pages far apart: too short for the processor's own prefetching and, if heads are a power of two
// apart, all in a few sets of the cache. So many heads are done together that the data prefetched,
// their values and the next ones' keys, fit in half of a second-level cache of 1 MiB.
constexpr int64_t kStripBytes = int64_t{160} << 10;  // of keys
static inline int64_t heads_of_strip(const AttentionArgs& a) {
  return larger(1, kStripBytes / (kCutPages * a.layout.bytes));
}
static inline Heads heads_from(const AttentionTile& tile, int64_t first, int64_t most) {
  return {first, smaller(tile.heads - first, most)};
}

constexpr int64_t kColdPages = 2;  // how many pages of keys the first heads prefetch ahead

// Prefetches pages of some KV heads that will be needed soon, in the order of memory.
struct Ahead {
  const AttentionArgs* a = nullptr;
  const AttentionTile* tile = nullptr;
  int64_t head = 0;   // the first head
  int64_t bytes = 0;  // of all heads' pages for the same tokens
  bool values = false;
  int64_t page = 0, end = 0;
  const uint8_t* at = nullptr;  // the page before `page`
  int64_t byte = 0;             // prefetched up to here in that page
  int64_t share = 0;            // bytes to prefetch per unit of work
  int64_t due = 0;              // bytes due for the units done and not yet prefetched

  static inline Ahead keys_of(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                              const Heads& heads) {
    return of(a, tile, cut, heads, false);
  }
  static inline Ahead values_of(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                                const Heads& heads) {
    return of(a, tile, cut, heads, true);
  }
  // Spreads the prefetching over the step()s of `units` units of work together.
  inline void spread(int64_t units) {
    share = ((end - page) * ((bytes + 63) / 64 * 64) + units - 1) / units;
  }
  // Prefetches the share of `units` units. A core can wait for a dozen lines together, and what it
  // reads from its second-level cache waits for them: units should be small.
  [[gnu::noinline]] void step(int64_t units) {
    for (due += units * share; due > 0;) {
      if (byte >= bytes && !next_page()) return;
      // Lines go to the second-level cache because they are more than the nearest one holds.
      const int64_t stop = smaller(byte + due, bytes);
      int64_t i = byte;
      for (; i < stop; i += 64) __builtin_prefetch(at + i, 0, 2);
      due -= i - byte;
      byte = i;
    }
  }

 private:
  inline bool next_page() {
    if (page >= end) {
      share = due = 0;
      return false;
    }
    at = values ? page_of_values(*a, *tile, page, head) : page_of_keys(*a, *tile, page, head);
    ++page;
    byte = 0;
    return true;
  }
  static inline Ahead of(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                         const Heads& heads, bool values) {
    Ahead ahead;
    ahead.a = &a;
    ahead.tile = &tile;
    ahead.head = heads.first;
    ahead.bytes = ahead.byte = heads.count * a.layout.bytes;
    ahead.values = values;
    ahead.page = cut.first_page;
    ahead.end = cut.first_page + cut.pages();
    return ahead;
  }
};

// Prefetches while keys of some KV heads are multiplied: their values and, since a tile's first
// keys may never have been prefetched, also these, page by page.
struct KeysAhead {
  Ahead values, keys;

  // A page of a head is done in `parts` parts.
  inline KeysAhead(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                   const Heads& heads, int64_t parts)
      : values(Ahead::values_of(a, tile, cut, heads)), keys(Ahead::keys_of(a, tile, cut, heads)) {
    values.spread(cut.pages() * heads.count * parts);
    keys.page = heads.first == 0 ? smaller(keys.page + kColdPages, keys.end) : keys.end;
    keys.share = ((a.layout.bytes + 63) / 64 * 64 + parts - 1) / parts;
  }
  // Call this for each part.
  inline void step() {
    keys.step(1);
    values.step(1);
  }
};

// Returns the keys that follow those of some KV heads of a cut: the next heads', at most `most`, or
// the next cut's, which most likely goes to the same thread.
static inline Ahead keys_after(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                               const Heads& heads, int64_t most) {
  if (heads.end() < tile.heads) {
    return Ahead::keys_of(a, tile, cut, heads_from(tile, heads.end(), most));
  }
  const bool last = cut.base + kSplitKeys >= tile.end_key();
  return Ahead::keys_of(a, tile, last ? Cut{} : cut_at(a, tile, cut.base + kSplitKeys),
                        heads_from(tile, 0, most));
}

// Sets the result of queries that attended to nothing.
static inline void clear_result(const AttentionArgs& a, int64_t queries,
                                const AttentionPartial& result) {
  memset(result.out, 0, static_cast<size_t>(queries * a.padded_dim) * sizeof(float));
  for (int64_t i = 0; i < queries; ++i) result.maximum[i] = kNoScore, result.sum[i] = 0;
}

// Divides scratch memory into pieces that start at cache lines.
struct Pieces {
  uint8_t* at;

  template <class T>
  inline T* take(int64_t count) {
    const uintptr_t aligned = (reinterpret_cast<uintptr_t>(at) + 63) & ~uintptr_t{63};
    at += static_cast<int64_t>(aligned - reinterpret_cast<uintptr_t>(at));
    T* piece = reinterpret_cast<T*>(at);
    at += count * static_cast<int64_t>(sizeof(T));
    return piece;
  }
};

// Calls f<count>() for a count of 1 to kMost.
template <int kMost, class F>
[[gnu::always_inline]] static inline void with_count(int64_t count, const F& f) {
  if constexpr (kMost > 1) {
    if (count < kMost) return with_count<kMost - 1>(count, f);
  }
  f.template operator()<kMost>();
}

}  // namespace
}  // namespace spillway
