// SPDX-License-Identifier: Apache-2.0
// Weighted sums of values of int8 or int4 on x86, with any of its sets of vectors `V`.
//
// The codes of a byte's tokens lie together: multiplied with the tokens' weights as they are, a
// vector of codes stays a vector of sums over all pages of the cut. The unit of a query's weights
// is that of the whole cut.
//
// Only static functions: each object that includes this is compiled for instructions of its own.
#pragma once

#include "cpu/attention/attention_code_groups_inl.h"
#include "cpu/attention/attention_integers_x86_inl.h"

namespace spillway {
namespace {

// Sums of a group's values: 2 kinds of 32 columns or one of 64, times 4 lanes.
constexpr int64_t kTotals = kKvGroup * 4;

struct ValueScratch {
  float* scales;     // [groups, 256]
  float* means;      // [groups, 256]; minima moved by kInt4Mean
  float* products;   // [256], of probabilities and scales
  uint8_t* weights;  // [V::kMostQueries, 16 pages, 64]
  int32_t* totals;   // [V::kMostQueries, kTotals]
};

enum class CodeKind { kBytes, kLowHalves, kHighHalves };

// Weighted sums of the codes in S vectors of each page, at byte `at` of it, for Q queries.
template <class V, CodeKind kKind, int Q, int S>
[[gnu::noinline]] static void add_codes(const uint8_t* const* pages, int64_t count, int64_t at,
                                        const uint8_t* weights, int32_t* totals) {
  constexpr int64_t kVector = 4 * V::kLanes;
  typename V::Sums sums[Q][S];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < S; ++v) sums[i][v] = {V::set_ints(0), V::set_ints(0)};
  }
#pragma GCC unroll 1
  for (int64_t page = 0; page < count; ++page, weights += 64) {
    const uint8_t* from = pages[page] + at;
#pragma GCC unroll 8
    for (int v = 0; v < S; ++v) {
      const auto x = V::load_ints(from + v * kVector);
      const auto codes = V::value_codes(kKind == CodeKind::kBytes       ? x
                                        : kKind == CodeKind::kLowHalves ? V::low_halves(x)
                                                                        : V::high_halves(x));
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i) {
        V::add_values(sums[i][v], codes, V::load_weights(weights + i * kCutPages * 64));
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < S; ++v) {
      V::store_ints(totals + i * kTotals + v * V::kLanes, V::total(sums[i][v]));
    }
  }
}

// All columns of a group of one kind.
template <class V, CodeKind kKind, int Q>
[[gnu::noinline]] static void add_group(const uint8_t* const* pages, int64_t count, int64_t at,
                                        int64_t columns, const uint8_t* weights, int32_t* totals,
                                        Ahead& ahead) {
  constexpr int S = V::kSums / 2 / Q >= 4 ? 4 : V::kSums / 2 / Q >= 2 ? 2 : 1;
  constexpr int64_t kVector = 4 * V::kLanes;
  const int64_t end = columns * kPageTokens;
  int64_t byte = 0;
  for (; byte + S * kVector <= end; byte += S * kVector) {
    ahead.step(S);
    add_codes<V, kKind, Q, S>(pages, count, at + byte, weights, totals + byte / 4);
  }
  for (; byte < end; byte += kVector) {
    ahead.step(1);
    add_codes<V, kKind, Q, 1>(pages, count, at + byte, weights, totals + byte / 4);
  }
}

// What a query's integers stand for: an element is unit * (sum of products - excess) + offset.
struct WeightUnit {
  float unit, offset;
  int32_t excess;
};

// The totals of `columns` columns as elements.
template <class V>
static inline void finish_columns(const int32_t* totals, int64_t columns, const WeightUnit& w,
                                  float* out) {
  for (int64_t c = 0; c < columns; c += V::kLanes) {
    const auto sums = V::sub(V::columns_of(totals + 4 * c), V::set_ints(w.excess));
    V::store_some(out + c, V::fma(V::to_floats(sums), V::set(w.unit), V::set(w.offset)),
                  columns - c);
  }
}

// Probabilities times the scales of V, as 16-bit integers: put(page, split) gets those of 16
// tokens. Scales of keys that were never stored may be NaN; their probability is 0.
template <class V, bool kInt4, class Put>
static inline WeightUnit weigh(const float* p, const float* scales, const float* means,
                               int64_t pages, float* products, const Put& put) {
  auto top = V::set(0), check = V::set(0), sum = V::set(0);
  for (int64_t i = 0; i < pages * kPageTokens; i += V::kLanes) {
    const auto x = V::load(p + i);
    const auto product = V::where_any(x, V::mul(x, V::load(scales + i)));
    V::store(products + i, product);
    top = V::max(product, top);
    check = V::fma(product, V::set(0), check);
    if (kInt4) sum = V::add(sum, V::where_any(x, V::mul(x, V::load(means + i))));
  }
  const float largest = V::largest(top);
  // Below this its inverse overflows, and it is nothing beside the largest probability's 1.
  const auto factor = V::set(largest > 1e-30F ? V::kLargestWeight / largest : 0);
  auto total = V::set_ints(0);
  for (int64_t page = 0; page < pages; ++page, products += kPageTokens) {
    typename V::Ints sixteen[kPageTokens / V::kLanes];
#pragma GCC unroll 2
    for (int64_t j = 0; j < kPageTokens; j += V::kLanes) {
      const auto nearest = V::to_nearest(V::mul(V::load(products + j), factor));
      sixteen[j / V::kLanes] = nearest;
      if (kInt4) total = V::add(total, nearest);
    }
    put(page, V::split_weights(V::template pack16<true>(sixteen)));
  }
  return {largest / V::kLargestWeight + V::sum(check), V::sum(sum),
          kInt4 ? times(kInt4Mean, sum_lanes<V>(total)) : 0};
}

// Values of a kv head for `queries` queries, whose probabilities begin at the cut's first page.
template <class V, bool kInt4>
static inline void add_head(const AttentionArgs& a, const uint8_t* const* pages, int64_t count,
                            int64_t queries, const float* p, const ValueScratch& s, float* out,
                            Ahead& ahead) {
  constexpr int64_t kGroupBytes = kInt4 ? kKvGroup / 2 : kKvGroup;
  for (int64_t g = 0; g < a.layout.groups; ++g) {
    const int64_t size = group_size(a.layout, g), columns = kInt4 ? size / 2 : size;
    const int64_t at = a.layout.codes_at + g * kGroupBytes * kPageTokens;
    for (int64_t first = 0; first < queries; first += V::kMostQueries) {
      const int64_t chunk = smaller(queries - first, V::kMostQueries);
      WeightUnit units[V::kMostQueries];
      for (int64_t i = 0; i < chunk; ++i) {
        uint8_t* weights = s.weights + i * kCutPages * 64;
        units[i] = weigh<V, kInt4>(
            p + (first + i) * kSplitKeys, s.scales + g * kSplitKeys, s.means + g * kSplitKeys,
            count, s.products, [&](int64_t page, __m256i split) __attribute__((always_inline)) {
              store_value_weights(split, weights + page * 64);
            });
      }
      with_count<V::kMostQueries>(
          chunk, [&]<int Q>() __attribute__((always_inline)) {
            if constexpr (kInt4) {
              add_group<V, CodeKind::kLowHalves, Q>(pages, count, at, columns, s.weights, s.totals,
                                                    ahead);
              add_group<V, CodeKind::kHighHalves, Q>(pages, count, at, columns, s.weights,
                                                     s.totals + kTotals / 2, ahead);
            } else {
              add_group<V, CodeKind::kBytes, Q>(pages, count, at, columns, s.weights, s.totals,
                                                ahead);
            }
          });
      for (int64_t i = 0; i < chunk; ++i) {
        float* to = out + (first + i) * a.padded_dim + g * kKvGroup;
        const int32_t* totals = s.totals + i * kTotals;
        finish_columns<V>(totals, columns, units[i], to);
        if (kInt4) finish_columns<V>(totals + kTotals / 2, columns, units[i], to + columns);
      }
    }
  }
}

// Scales and means of V of a kv head's keys, from the first page on.
template <class V, bool kInt4>
static inline void load_value_scales(const KvPageLayout& layout, const uint8_t* const* pages,
                                     int64_t count, const ValueScratch& s) {
  for (int64_t page = 0; page < count; ++page) {
    for (int64_t g = 0; g < layout.groups; ++g) {
      const int64_t from = 2 * g * kPageTokens, to = g * kSplitKeys + page * kPageTokens;
      load_sixteen<V>(pages[page] + from, s.scales + to);
      if constexpr (kInt4) {
        load_sixteen<V>(pages[page] + layout.mins_at + from, s.means + to);
        add_means<V>(s.scales + to, s.means + to);
      }
    }
  }
}

}  // namespace
}  // namespace spillway
