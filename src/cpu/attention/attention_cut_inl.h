// SPDX-License-Identifier: Apache-2.0
// What kernels that do a cut a few kv heads at a time share: its keys, where its pages are, asking
// memory for them in time. For x86, and for ARM without matrix multiplication of bytes.
//
// A cut is done for some kv heads after the others: their keys, softmax, their values. Meanwhile
// memory is asked for what comes next, evenly: for the values while keys are multiplied, and for
// the next heads' keys (or the next cut's) while values are added up. So a thread waits for
// neither, and asks for as much in either half of its work.
//
// Only static functions: each object that includes this is compiled for instructions of its own.
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
// Those that the query at `position` sees of the cut at `base`; none if begin >= end.
static inline Keys seen_keys(const AttentionArgs& a, int64_t base, int64_t position) {
  const int64_t first = a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
  return {larger(first - base, 0), smaller(position + 1 - base, kSplitKeys)};
}
// Those of query i of a kv head.
static inline Keys seen_by(const AttentionArgs& a, const AttentionTile& tile, int64_t base,
                           int64_t i) {
  return seen_keys(a, base, tile.position + i / a.group);
}

// What some query of the tile sees of a cut, as keys of the cut and as pages of the sequence.
struct Cut {
  int64_t base;
  Keys keys;
  int64_t first_page, end_page;

  bool empty() const { return keys.begin >= keys.end; }
  int64_t pages() const { return empty() ? 0 : end_page - first_page; }
  // Of a page's first key.
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

// Kv heads of a tile whose keys, and then whose values, are done together.
struct Heads {
  int64_t first, count;

  int64_t end() const { return first + count; }
};

// Pages of neighbouring kv heads are neighbours in memory. One head alone is read as a page here
// and a page there: too short for what a processor fetches by itself, and where heads are a power
// of two apart, all in a few sets of the cache. So many heads are done together as leave what is
// asked for ahead, their values and the next ones' keys, in half of a second-level cache of 1 MiB.
constexpr int64_t kStripBytes = int64_t{160} << 10;  // of keys
static inline int64_t heads_of_strip(const AttentionArgs& a) {
  return larger(1, kStripBytes / (kCutPages * a.layout.bytes));
}
static inline Heads heads_from(const AttentionTile& tile, int64_t first, int64_t most) {
  return {first, smaller(tile.heads - first, most)};
}

constexpr int64_t kColdPages = 2;  // of keys, how far ahead the first heads ask

// Pages of some kv heads that will be needed soon, in the order of memory.
struct Ahead {
  const AttentionArgs* a = nullptr;
  const AttentionTile* tile = nullptr;
  int64_t head = 0;   // the first
  int64_t bytes = 0;  // of all heads' pages for the same tokens
  bool values = false;
  int64_t page = 0, end = 0;
  const uint8_t* at = nullptr;  // the page before `page`
  int64_t byte = 0;             // of it: asked for up to here
  int64_t share = 0;            // bytes of a unit of work
  int64_t due = 0;              // bytes of the units done that were not asked for

  static inline Ahead keys_of(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                              const Heads& heads) {
    return of(a, tile, cut, heads, false);
  }
  static inline Ahead values_of(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                                const Heads& heads) {
    return of(a, tile, cut, heads, true);
  }
  // All of it is asked for in step()s of `units` units of work together.
  inline void spread(int64_t units) {
    share = ((end - page) * ((bytes + 63) / 64 * 64) + units - 1) / units;
  }
  // A core waits for a dozen lines at once, and what it reads from its second cache waits behind
  // them: units should be small.
  [[gnu::noinline]] void step(int64_t units) {
    for (due += units * share; due > 0;) {
      if (byte >= bytes && !next_page()) return;
      // To the second cache: what is asked for ahead is more than the nearest one holds.
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

// What is asked for while keys of some kv heads are multiplied: their values. A tile's first keys
// were perhaps never asked for: then also they, page by page.
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
  // For each part.
  inline void step() {
    keys.step(1);
    values.step(1);
  }
};

// The keys that follow those of some kv heads of a cut: the next heads', at most `most`, or the
// next cut's, which the same thread most likely gets.
static inline Ahead keys_after(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                               const Heads& heads, int64_t most) {
  if (heads.end() < tile.heads) {
    return Ahead::keys_of(a, tile, cut, heads_from(tile, heads.end(), most));
  }
  const bool last = cut.base + kSplitKeys >= tile.end_key();
  return Ahead::keys_of(a, tile, last ? Cut{} : cut_at(a, tile, cut.base + kSplitKeys),
                        heads_from(tile, 0, most));
}

// Nothing was seen.
static inline void clear_result(const AttentionArgs& a, int64_t queries,
                                const AttentionPartial& result) {
  memset(result.out, 0, static_cast<size_t>(queries * a.padded_dim) * sizeof(float));
  for (int64_t i = 0; i < queries; ++i) result.maximum[i] = kNoScore, result.sum[i] = 0;
}

// The scratch memory, given out in pieces that start at lines of the cache.
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

// f<count>() for a count of 1 to kMost.
template <int kMost, class F>
[[gnu::always_inline]] static inline void with_count(int64_t count, const F& f) {
  if constexpr (kMost > 1) {
    if (count < kMost) return with_count<kMost - 1>(count, f);
  }
  f.template operator()<kMost>();
}

}  // namespace
}  // namespace spillway
