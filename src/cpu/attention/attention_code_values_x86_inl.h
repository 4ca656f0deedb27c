// SPDX-License-Identifier: Apache-2.0
// Computes weighted sums of values of int8 or int4 on x86, where `V` wraps the vectors of one
// instruction set.
//
// A page stores a column's codes of all its tokens next to each other. So a vector of codes is
// multiplied with the tokens' weights as it lies, and sums are added up in vectors over all pages
// of the cut, which are up to 256 keys that are done together. A query's integer weights have one
// unit (WeightUnit) for all keys of the cut.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include "cpu/attention/attention_code_groups_inl.h"
#include "cpu/attention/attention_integers_x86_inl.h"

namespace spillway {
namespace {

constexpr int64_t kStepPages = 4;  // the pages between prefetches

// The integer totals of a group of 64 columns (int4: 32 of low halves, then 32 of high ones), with
// four partial sums for each column.
constexpr int64_t kTotals = kKvGroup * 4;

struct ValueScratch {
  float* scales;     // [groups, 256]
  float* means;      // [groups, 256]; int4 only: minimum + kInt4Mean * scale
  float* products;   // [V::kMostQueries, 256], of probabilities and scales
  uint8_t* weights;  // [V::kMostQueries, 16 pages, 64]
  int32_t* totals;   // [V::kMostQueries, kTotals]
};

// High halves are multiplied as they are in a byte, as 16 * (code - kInt4Mean): sums of 256 tokens
// just fit 32 bits.
enum class CodeKind { kBytes, kLowHalves, kHighHalves };
constexpr float kHighUnit = 1.0F / 16;

// Adds up weighted codes in S vectors of each page, at byte `at` of it, for Q queries.
template <class V, CodeKind kKind, int Q, int S>
[[gnu::noinline]] static void add_codes(const uint8_t* const* pages, int64_t count, int64_t at,
                                        const uint8_t* weights, int32_t* totals, Ahead& ahead) {
  constexpr int64_t kVector = 4 * V::kLanes;
  typename V::Sums sums[Q][S];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < S; ++v) sums[i][v] = {V::set_ints(0), V::set_ints(0)};
  }
#pragma GCC unroll 1
  for (int64_t page = 0; page < count; ++page, weights += 64) {
    if (page % kStepPages == 0) ahead.step(kStepPages * S);
    const uint8_t* from = pages[page] + at;
#pragma GCC unroll 8
    for (int v = 0; v < S; ++v) {
      const auto x = V::load_ints(from + v * kVector);
      const auto codes = V::value_codes(kKind == CodeKind::kBytes       ? x
                                        : kKind == CodeKind::kLowHalves ? V::low_halves(x)
                                                                        : V::centred_halves(x));
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

// Does all columns of a group of one kind.
template <class V, CodeKind kKind, int Q>
[[gnu::noinline]] static void add_group(const uint8_t* const* pages, int64_t count, int64_t at,
                                        int64_t columns, const uint8_t* weights, int32_t* totals,
                                        Ahead& ahead) {
  constexpr int S = V::kSums / 2 / Q >= 4 ? 4 : V::kSums / 2 / Q >= 2 ? 2 : 1;
  constexpr int64_t kVector = 4 * V::kLanes;
  const int64_t end = columns * kPageTokens;
  int64_t byte = 0;
  for (; byte + S * kVector <= end; byte += S * kVector) {
    add_codes<V, kKind, Q, S>(pages, count, at + byte, weights, totals + byte / 4, ahead);
  }
  for (; byte < end; byte += kVector) {
    add_codes<V, kKind, Q, 1>(pages, count, at + byte, weights, totals + byte / 4, ahead);
  }
}

// The meaning of a query's integers: an element is unit * (sum of products - excess) + offset.
struct WeightUnit {
  float unit, offset;
  int32_t excess;
};

// Converts the totals of `columns` columns to elements.
template <class V>
static inline void finish_columns(const int32_t* totals, int64_t columns, const WeightUnit& w,
                                  float* out) {
  for (int64_t c = 0; c < columns; c += V::kLanes) {
    const auto sums = V::sub(V::columns_of(totals + 4 * c), V::set_ints(w.excess));
    V::store_some(out + c, V::fma(V::to_floats(sums), V::set(w.unit), V::set(w.offset)),
                  columns - c);
  }
}

// Facts about a query's probabilities times the scales of the values.
struct Products {
  float largest;  // NaN if a product is NaN
  float offset;   // sum of probabilities times means
};
// Multiplies probabilities with scales. Scales of keys that were never stored may be NaN; their
// probability is 0.
template <class V, bool kInt4>
static inline Products multiply(const float* p, const float* scales, const float* means,
                                int64_t pages, float* products) {
  auto top = V::set(0), check = V::set(0), sum = V::set(0);
  for (int64_t i = 0; i < pages * kPageTokens; i += V::kLanes) {
    const auto x = V::load(p + i);
    const auto product = V::where_any(x, V::mul(x, V::load(scales + i)));
    V::store(products + i, product);
    top = V::max(product, top);
    check = V::fma(product, V::set(0), check);
    if (kInt4) sum = V::fma_where_any(x, V::load(means + i), sum);
  }
  return {V::largest(top) + V::sum(check), V::sum(sum)};
}

// Converts products to 16-bit integers, [pages, 64 bytes].
template <class V, bool kInt4>
static inline WeightUnit round_products(const Products& all, const float* products, int64_t pages,
                                        uint8_t* weights) {
  // The factor of smaller products would overflow. The largest probability is 1, so the scales that
  // count are practically 0 then, and 0 will do.
  const auto factor = V::set(all.largest > 1e-30F ? V::kLargestWeight / all.largest : 0);
  auto total = V::set_ints(0);
  for (int64_t page = 0; page < pages; ++page, products += kPageTokens, weights += 64) {
    typename V::Ints sixteen[kPageTokens / V::kLanes];
#pragma GCC unroll 2
    for (int64_t j = 0; j < kPageTokens; j += V::kLanes) {
      const auto nearest = V::to_nearest(V::mul(V::load(products + j), factor));
      sixteen[j / V::kLanes] = nearest;
      if (kInt4) total = V::add(total, nearest);
    }
    V::store_weights(weights, sixteen);
  }
  return {all.largest / V::kLargestWeight, all.offset, kInt4 ? times(kInt4Mean, V::sum(total)) : 0};
}

// Adds the values of a KV head for `queries` queries, whose probabilities begin at the cut's first
// page.
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
      // Queries are done in chunks because a single one would wait for its own sums across lanes.
      Products products[V::kMostQueries];
      for (int64_t i = 0; i < chunk; ++i) {
        products[i] =
            multiply<V, kInt4>(p + (first + i) * kSplitKeys, s.scales + g * kSplitKeys,
                               s.means + g * kSplitKeys, count, s.products + i * kSplitKeys);
      }
      WeightUnit units[V::kMostQueries];
      for (int64_t i = 0; i < chunk; ++i) {
        units[i] = round_products<V, kInt4>(products[i], s.products + i * kSplitKeys, count,
                                            s.weights + i * kCutPages * 64);
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
        if (kInt4) {
          finish_columns<V>(totals + kTotals / 2, columns,
                            {units[i].unit * kHighUnit, units[i].offset, 0}, to + columns);
        }
      }
    }
  }
}

// Loads the scales and means of a KV head's values, from the first page on.
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
