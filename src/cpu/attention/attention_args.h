// SPDX-License-Identifier: Apache-2.0
// Describes how attention is divided into work for its kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/kv_format.h"

namespace spillway {

inline constexpr int64_t kSplitKeys = 256;   // keys of a cut, which gives one partial result
inline constexpr int64_t kTileQueries = 32;  // (row, head) pairs of one tile, at most
inline constexpr int64_t kPageTokens = kKvBlockTokens;

struct AttentionArgs {
  const float* q = nullptr;  // [rows, heads * head_dim]
  int64_t q_stride = 0;
  float* out = nullptr;  // like q
  int64_t out_stride = 0;
  float* sums = nullptr;  // SoftmaxState that tiles continue, instead of `out`; or null
  int64_t sums_stride = 0;
  const uint8_t* k = nullptr;  // [block][kv_head] pages of `layout`
  const uint8_t* v = nullptr;
  // V of tiles whose V is read in host memory (KvLayerView::home_v).
  const uint8_t* home_v = nullptr;
  KvPageLayout layout{KvType::kF32, 1};
  int64_t kv_heads = 0;
  int64_t group = 0;  // query heads per KV head
  int64_t head_dim = 0;
  int64_t padded_dim = 0;  // head_dim rounded up to 16
  float scale = 1;
  int64_t window = 0;  // 0 = none

  const uint8_t* page(const uint8_t* plane, int64_t block, int64_t kv_head) const {
    return plane + (block * kv_heads + kv_head) * layout.bytes;
  }
};

// Consecutive rows of one sequence with all the query heads of some KV heads. The first rows *
// group queries are those of the first KV head, and so on; query i of a KV head is its head i %
// group of row i / group. Pages of neighbouring KV heads are neighbours in memory: with several
// heads, a few rows read long runs instead of single pages, which memory does fastest.
struct AttentionTile {
  const int32_t* blocks = nullptr;  // the sequence's block table
  int64_t first_row = 0;            // in q
  int64_t position = 0;             // of the first row
  int64_t rows = 0;
  int64_t kv_head = 0;            // the first KV head
  int64_t heads = 1;              // number of KV heads
  const int32_t* home = nullptr;  // V of the first pages is elsewhere (SequenceSpan::home)
  int64_t home_pages = 0;
  int64_t keys = 0;  // of the sequence so far; used by kernels of many rows
  // The positions that the table covers. If only a partition of the sequence is attended to
  // (device/partitioned_attention.h), they may be fewer than those before the rows; then this is a
  // multiple of kSplitKeys.
  int64_t covered = INT64_MAX;

  // The keys that any row of the tile attends to are [first_key, end_key).
  int64_t first_key(int64_t window) const {
    return window > 0 && position + 1 > window ? position + 1 - window : 0;
  }
  int64_t end_key() const { return covered < position + rows ? covered : position + rows; }
};

// Returns the page of `kv_head` with V of a key.
inline const uint8_t* values_page(const AttentionArgs& a, const AttentionTile& tile, int64_t key,
                                  int64_t kv_head) {
  const int64_t page = key / kPageTokens;
  return page < tile.home_pages ? a.page(a.home_v, tile.home[page], kv_head)
                                : a.page(a.v, tile.blocks[page], kv_head);
}

// The unnormalised results of a tile's queries over some keys: the result of query i is out[i] /
// sum[i], relative to e^maximum[i]. A query that attended to no key has sum 0. Results of two
// devices over different keys can be merged in this form.
struct AttentionPartial {
  float* out = nullptr;      // [queries, padded_dim]
  float* maximum = nullptr;  // [queries]
  float* sum = nullptr;      // [queries]
};

constexpr size_t partial_floats(int64_t queries, int64_t padded_dim) {
  return static_cast<size_t>(queries * padded_dim + 2 * ((queries + 15) / 16 * 16));
}
inline AttentionPartial partial_at(float* memory, int64_t queries, int64_t padded_dim) {
  float* maximum = memory + queries * padded_dim;
  return {memory, maximum, maximum + (queries + 15) / 16 * 16};
}

// The queries of a tile if those of each KV head, three or more, are rounded up to a multiple of
// four: six heads of five at worst.
inline constexpr int64_t kTilePlaces = 48;

// Returns the scratch memory that suffices for any kernel of one cut: scores as floats and
// probabilities as halves; the same and scales per group of 64 elements; queries and sums of 12
// bytes per element and query; two copies of 64 rows.
constexpr size_t split_scratch_floats(int64_t padded_dim) {
  const int64_t columns = padded_dim + 16, groups = (padded_dim + kKvGroup - 1) / kKvGroup;
  return static_cast<size_t>(kTilePlaces * kSplitKeys * 3 / 2 + 2 * groups * kSplitKeys +
                             kTilePlaces * groups * kSplitKeys / 2 + kTilePlaces * columns * 5 / 2 +
                             64 * columns);
}

// In prefill, at most this many queries of one KV head share one conversion of its keys and values;
// a multiple of the 10 that a kernel takes in one pass.
inline constexpr int64_t kPrefillQueries = 960;

// Returns the scratch memory of a prefill kernel for tiles of up to kPrefillQueries: outputs,
// maxima and sums of all queries, the queries, a cut of keys and one of values, the scores and
// probabilities of 10 queries and the rows of a page.
constexpr size_t prefill_scratch_floats(int64_t padded_dim) {
  return static_cast<size_t>(kPrefillQueries * (padded_dim + 3) + kPrefillQueries * padded_dim +
                             kSplitKeys * padded_dim + 10 * kSplitKeys * 2 +
                             kPageTokens * padded_dim + 64);
}

}  // namespace spillway
