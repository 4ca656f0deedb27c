// SPDX-License-Identifier: Apache-2.0
// Attention over F16 and BF16 pages, for any set of vectors `V`: elements become floats as they are
// read, for up to V::kMostQueries queries together.
//
// The instructions that compete for the two vector ports are, per line of 64 bytes and Q queries:
// with AVX-512 2 conversions (for BF16 also 2 shifts), 2 Q products and about Q for sums across
// lanes and softmax; with AVX2 twice that. A core that gets 6.5 GB/s at 2.7 GHz has a line every 27
// cycles: room for 54.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include "cpu/attention/attention_cut_inl.h"
#include "cpu/attention/attention_softmax_inl.h"

namespace spillway {
namespace {

// Loads V::kLanes elements.
template <class V, KvType kType>
[[gnu::always_inline]] static inline typename V::Floats load_elements(const uint8_t* p) {
  static_assert(is_half(kType));
  return kType == KvType::kF16 ? V::load_halves(p) : V::load_bfloats(p);
}

// The rows of a page, `columns` elements long, a multiple of a vector.
struct HalfRows {
  const uint8_t* at;
  int64_t stride;
};
// Returns the rows in place, or copied to `padded` [16, columns] with zeros after them.
static inline HalfRows half_rows(const AttentionArgs& a, const uint8_t* page, int64_t columns,
                                 uint8_t* padded) {
  const int64_t bytes = a.layout.row_bytes;
  if (bytes == 2 * columns) return {page, bytes};
  for (int64_t t = 0; t < kPageTokens; ++t) {
    memcpy(padded + t * 2 * columns, page + t * bytes, static_cast<size_t>(bytes));
    memset(padded + t * 2 * columns + bytes, 0, static_cast<size_t>(2 * columns - bytes));
  }
  return {padded, 2 * columns};
}

// Returns the largest power of two that is at most n (and at most 16).
constexpr int power_below(int n) { return n >= 16 ? 16 : n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1; }

// Stores sums of products of Q queries with R rows, lanes separate, to sums [Q][16][V::kLanes].
template <class V, KvType kType, int Q, int R>
[[gnu::always_inline]] static inline void multiply_rows(const HalfRows& rows, const float* q,
                                                        int64_t columns, float* sums) {
  typename V::Floats acc[Q][R];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[i][r] = V::set(0);
  }
#pragma GCC unroll 1
  for (int64_t c = 0; c < columns; c += V::kLanes) {
    typename V::Floats x[Q];
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) x[i] = V::load(q + i * columns + c);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto key = load_elements<V, kType>(rows.at + r * rows.stride + 2 * c);
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i) acc[i][r] = V::fma(key, x[i], acc[i][r]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) V::store(sums + (i * kPageTokens + r) * V::kLanes, acc[i][r]);
  }
}

// Computes the scores of Q queries for the 16 keys of a page.
template <class V, KvType kType, int Q>
[[gnu::noinline]] static void score_half_page(HalfRows rows, const float* q, int64_t columns,
                                              float* sums, float* scores) {
  constexpr int R = power_below(V::kSums / Q);
#pragma GCC unroll 1
  for (int64_t t = 0; t < kPageTokens; t += R) {
    multiply_rows<V, kType, Q, R>(rows, q, columns, sums + t * V::kLanes);
    rows.at += R * rows.stride;
  }
#pragma GCC unroll 1
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 2
    for (int64_t t = 0; t < kPageTokens; t += V::kLanes) {
      V::store(scores + i * kSplitKeys + t, V::sum_each(sums + (i * kPageTokens + t) * V::kLanes));
    }
  }
}

// Computes the scores of all queries of a KV head.
template <class V, KvType kType>
static inline void score_half_keys(const HalfRows& rows, const float* q, int64_t queries,
                                   int64_t columns, float* sums, float* scores) {
  for (int64_t i = 0; i < queries; i += V::kMostQueries) {
    with_count<V::kMostQueries>(
        queries - i, [&]<int Q>() __attribute__((always_inline)) {
          score_half_page<V, kType, Q>(rows, q + i * columns, columns, sums,
                                       scores + i * kSplitKeys);
        });
  }
}

// Adds to out[i] the sum over rows [begin, end) of p[i] * row, for Q queries and S vectors of
// columns.
template <class V, KvType kType, int Q, int S>
[[gnu::always_inline]] static inline void add_strip(const HalfRows& rows, int64_t begin,
                                                    int64_t end, const float* p, int64_t column,
                                                    float* out, int64_t out_stride) {
  typename V::Floats acc[Q][S];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < S; ++v) acc[i][v] = V::load(out + i * out_stride + column + v * V::kLanes);
  }
#pragma GCC unroll 1
  for (int64_t t = begin; t < end; ++t) {
    const uint8_t* row = rows.at + t * rows.stride + 2 * column;
    typename V::Floats x[S];
#pragma GCC unroll 8
    for (int v = 0; v < S; ++v) x[v] = load_elements<V, kType>(row + 2 * v * V::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const auto weight = V::set(p[i * kSplitKeys + t]);
#pragma GCC unroll 8
      for (int v = 0; v < S; ++v) acc[i][v] = V::fma(weight, x[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < S; ++v) V::store(out + i * out_stride + column + v * V::kLanes, acc[i][v]);
  }
}
template <class V, KvType kType, int Q>
[[gnu::noinline]] static void add_half_page(const HalfRows& rows, int64_t begin, int64_t end,
                                            const float* p, int64_t columns, float* out,
                                            int64_t out_stride) {
  constexpr int S = power_below(V::kSums / Q < 8 ? V::kSums / Q : 8);
  int64_t c = 0;
  for (; c + S * V::kLanes <= columns; c += S * V::kLanes) {
    add_strip<V, kType, Q, S>(rows, begin, end, p, c, out, out_stride);
  }
  for (; c < columns; c += V::kLanes) {
    add_strip<V, kType, Q, 1>(rows, begin, end, p, c, out, out_stride);
  }
}

// Returns the keys of a page, whose first key is `first`, that query i of a KV head attends to.
static inline Keys seen_of_page(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                                int64_t first, int64_t i) {
  const Keys seen = seen_by(a, tile, cut.base, i);
  return {larger(seen.begin - first, 0), smaller(seen.end - first, kPageTokens)};
}

// Adds a page's values to the outputs of a KV head's queries. Each adds its visible keys only, in
// ascending order: NaN in a masked key must not reach it.
template <class V, KvType kType>
static inline void add_values(const AttentionArgs& a, const AttentionTile& tile, const Cut& cut,
                              const HalfRows& rows, int64_t first, int64_t columns, const float* p,
                              float* out) {
  const int64_t queries = tile.rows * a.group;
  for (int64_t i = 0; i < queries; i += V::kMostQueries) {
    const int64_t end = smaller(i + V::kMostQueries, queries);
    const Keys seen = seen_of_page(a, tile, cut, first, i);
    const Keys last = seen_of_page(a, tile, cut, first, end - 1);
    if (seen.begin == last.begin && seen.end == last.end) {
      with_count<V::kMostQueries>(
          end - i, [&]<int Q>() __attribute__((always_inline)) {
            add_half_page<V, kType, Q>(rows, seen.begin, seen.end, p + i * kSplitKeys + first,
                                       columns, out + i * a.padded_dim, a.padded_dim);
          });
      continue;
    }
    for (int64_t j = i; j < end; ++j) {
      const Keys one = seen_of_page(a, tile, cut, first, j);
      add_half_page<V, kType, 1>(rows, one.begin, one.end, p + j * kSplitKeys + first, columns,
                                 out + j * a.padded_dim, a.padded_dim);
    }
  }
}

template <class V, KvType kType>
static void attend_half(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                        const AttentionPartial& result, float* scratch) {
  const int64_t queries = tile.rows * a.group;
  const Cut cut = cut_at(a, tile, split * kSplitKeys);
  clear_result(a, tile.heads * queries, result);
  if (cut.empty()) return;

  const int64_t columns = (a.head_dim + V::kLanes - 1) / V::kLanes * V::kLanes;
  Pieces pieces{reinterpret_cast<uint8_t*>(scratch)};
  float* scores = pieces.take<float>(kTileQueries * kSplitKeys);  // later probabilities
  float* q = pieces.take<float>(kTileQueries * columns);
  float* sums = pieces.take<float>(V::kMostQueries * kPageTokens * V::kLanes);
  uint8_t* padded = pieces.take<uint8_t>(kPageTokens * 2 * columns);
  const int64_t most = heads_of_strip(a);
  for (Heads heads = heads_from(tile, 0, most); heads.count > 0;
       heads = heads_from(tile, heads.end(), most)) {
    const int64_t first = heads.first * queries, all = heads.count * queries;
    memset(q, 0, static_cast<size_t>(all * columns) * sizeof(float));
    for (int64_t i = 0; i < all; ++i) {
      memcpy(q + i * columns, query_at(a, tile, heads.first + i / queries, i % queries),
             static_cast<size_t>(a.head_dim) * sizeof(float));
    }
    KeysAhead ahead(a, tile, cut, heads, 1);
    for (int64_t page = cut.first_page; page < cut.end_page; ++page) {
      for (int64_t h = 0; h < heads.count; ++h) {
        ahead.step();
        const HalfRows rows =
            half_rows(a, page_of_keys(a, tile, page, heads.first + h), columns, padded);
        score_half_keys<V, kType>(rows, q + h * queries * columns, queries, columns, sums,
                                  scores + h * queries * kSplitKeys + cut.key_of(page));
      }
    }
    for (int64_t i = 0; i < all; ++i) {
      softmax<V>(cut, seen_by(a, tile, cut.base, i % queries), a.scale, scores + i * kSplitKeys,
                 result.maximum + first + i, result.sum + first + i);
    }
    Ahead keys = keys_after(a, tile, cut, heads, most);
    keys.spread(cut.pages() * heads.count);
    for (int64_t page = cut.first_page; page < cut.end_page; ++page) {
      for (int64_t h = 0; h < heads.count; ++h) {
        keys.step(1);
        const HalfRows rows =
            half_rows(a, page_of_values(a, tile, page, heads.first + h), columns, padded);
        add_values<V, kType>(a, tile, cut, rows, cut.key_of(page), columns,
                             scores + h * queries * kSplitKeys,
                             result.out + (first + h * queries) * a.padded_dim);
      }
    }
  }
}

}  // namespace
}  // namespace spillway
