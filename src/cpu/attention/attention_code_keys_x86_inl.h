// SPDX-License-Identifier: Apache-2.0
// Computes scores of queries for keys of int8 or int4 on x86, with any of its sets of vectors `V`.
//
// A page is transposed so that lanes are keys, four bytes of each: no sums across lanes are needed,
// and a query's operand is a broadcast word. Transposing costs four shuffles per line of 64 bytes,
// once for all queries. Bytes of int4 stay whole until they are multiplied: one load and three
// instructions replace two loads, and half as much is stored.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include "cpu/attention/attention_code_groups_inl.h"
#include "cpu/attention/attention_integers_x86_inl.h"

namespace spillway {
namespace {

constexpr int64_t kWordBytes = 4 * kPageTokens;  // a word of each key of a transposed page
// The operand bytes of a query, as a constant, so that a loop over words has one address.
constexpr int64_t kOperandBytes = 2 * kMostGroups * kKvGroup;

struct RoundedQuery {
  float scale[kMostGroups], sum[kMostGroups];
  int32_t start[kMostGroups];  // start value of a sum of products
};
struct RoundedQueries {
  RoundedQuery query[kTileQueries];
  uint8_t* operands;  // [queries, kOperandBytes]
};

// Orders a group of a query, four elements and four again, as the words of a row have them: for
// int4 those of the low halves of a word, then those of its high halves.
template <bool kInt4>
static inline void order_group(const float* q, int64_t size, float* out) {
  constexpr size_t kFour = 4 * sizeof(float);
  const int64_t half = size / 2;
  for (int64_t i = 0; i < half; i += 4) {
    memcpy(out + 2 * i, q + (kInt4 ? i : 2 * i), kFour);
    memcpy(out + 2 * i + 4, q + (kInt4 ? half + i : 2 * i + 4), kFour);
  }
}

// Converts one query to operands: two words for four elements.
template <class V, bool kInt4>
static inline RoundedQuery round_query(const KvPageLayout& layout, const float* q, uint8_t* out) {
  RoundedQuery rounded;
  for (int64_t g = 0; g < layout.groups; ++g, out += 2 * kKvGroup) {
    float x[kKvGroup] = {};
    const int64_t size = group_size(layout, g);
    order_group<kInt4>(q + g * kKvGroup, size, x);
    auto top = V::set(0), sum = V::set(0), check = V::set(0);
    for (int64_t i = 0; i < kKvGroup; i += V::kLanes) {
      const auto value = V::load(x + i);
      top = V::max(V::magnitude(value), top);
      sum = V::add(sum, value);
      check = V::fma(value, V::set(0), check);
    }
    const float largest = V::largest(top);
    // This is NaN if an element is not finite, and then so is every score.
    rounded.scale[g] = largest / kLargestQuery + V::sum(check);
    rounded.sum[g] = V::sum(sum);
    const float inverse = largest > 1e-30F ? kLargestQuery / largest : 0;
    auto total = V::set_ints(0);
    for (int64_t i = 0; i < size; i += 16) {
      typename V::Ints sixteen[16 / V::kLanes];
#pragma GCC unroll 2
      for (int64_t j = 0; j < 16; j += V::kLanes) {
        const auto nearest = V::to_nearest(V::mul(V::load(x + i + j), V::set(inverse)));
        sixteen[j / V::kLanes] = nearest;
        total = V::add(total, nearest);
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i),
                          V::split_query(V::pack16(sixteen)));
    }
    // This makes up for the codes of int8, which were made unsigned.
    rounded.start[g] = times(kInt4 ? -kInt4Mean : -128, V::sum(total));
  }
  return rounded;
}

// Transposes a page of keys to [row_bytes / 4, 16 keys, 4 bytes]; those of int8 become unsigned.
template <class V, bool kInt4>
[[gnu::noinline]] static void turn_page(const KvPageLayout& layout, const uint8_t* page,
                                        uint8_t* out) {
  const int64_t words = layout.row_bytes / 4;
  for (int64_t key = 0; key < kPageTokens; key += V::kLanes) {
    const uint8_t* rows = page + layout.codes_at + key * layout.row_bytes;
#pragma GCC unroll 1
    for (int64_t c = 0; c < words; c += V::kLanes) {
      uint8_t* to = out + c * kWordBytes + 4 * key;
      V::turn(
          rows + 4 * c, layout.row_bytes,
          words - c, [&](int64_t i, typename V::Ints x) __attribute__((always_inline)) {
            V::store_ints(to + i * kWordBytes, kInt4 ? x : V::to_unsigned(x));
          });
    }
  }
}

// Adds a group of elements, `words` words of a transposed page, to the scores of Q queries for 16
// keys: scores += (dot * query_scale) * scales + query_sum * means.
template <class V, bool kInt4, int Q>
[[gnu::noinline]] static void score_group(const uint8_t* turned, int64_t words, const uint8_t* q,
                                          const RoundedQuery* queries, int64_t group,
                                          const float* scales, const float* means, float* scores) {
#pragma GCC unroll 1
  for (int64_t at = 0; at < kPageTokens; at += V::kLanes) {
    typename V::Sums sums[Q];
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      sums[i] = {V::set_ints(0), V::set_ints(queries[i].start[group])};
    }
#pragma GCC unroll 1
    for (int64_t c = 0; c < words; ++c) {
      const auto x = V::load_ints(turned + c * kWordBytes + 4 * at);
      const uint8_t* from = q + c * (kInt4 ? 16 : 8);
      const auto codes = V::key_codes(kInt4 ? V::low_halves(x) : x);
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i) V::add_keys(sums[i], codes, from + i * kOperandBytes);
      if constexpr (kInt4) {
        const auto high = V::key_codes(V::high_halves(x));
#pragma GCC unroll 8
        for (int i = 0; i < Q; ++i) V::add_keys(sums[i], high, from + i * kOperandBytes + 8);
      }
    }
    const auto scale = V::load(scales + at);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const auto dots = V::mul(V::to_floats(V::total(sums[i])), V::set(queries[i].scale[group]));
      float* to = scores + i * kSplitKeys + at;
      auto s = group == 0 ? V::mul(dots, scale) : V::fma(dots, scale, V::load(to));
      if (kInt4) s = V::fma(V::load(means + at), V::set(queries[i].sum[group]), s);
      V::store(to, s);
    }
  }
}

// Computes the scores of `count` queries of a KV head for a page. `turned` is memory for its codes.
template <class V, bool kInt4>
static inline void score_page(const KvPageLayout& layout, const uint8_t* page,
                              const uint8_t* operands, const RoundedQuery* queries, int64_t count,
                              uint8_t* turned, float* scores, KeysAhead& ahead) {
  constexpr int64_t kCodes = kInt4 ? 8 : 4;  // per word
  ahead.step();
  turn_page<V, kInt4>(layout, page, turned);
  for (int64_t g = 0; g < layout.groups; ++g) {
    alignas(64) float scales[kPageTokens], means[kPageTokens] = {};
    load_sixteen<V>(page + 2 * g * kPageTokens, scales);
    if constexpr (kInt4) {
      load_sixteen<V>(page + layout.mins_at + 2 * g * kPageTokens, means);
      add_means<V>(scales, means);
    }
    for (int64_t i = 0; i < count; i += V::kMostQueries) {
      ahead.step();
      with_count<V::kMostQueries>(
          count - i, [&]<int Q>() __attribute__((always_inline)) {
            score_group<V, kInt4, Q>(turned + g * kKvGroup / kCodes * kWordBytes,
                                     group_size(layout, g) / kCodes,
                                     operands + i * kOperandBytes + 2 * g * kKvGroup, queries + i,
                                     g, scales, means, scores + i * kSplitKeys);
          });
    }
  }
}

}  // namespace
}  // namespace spillway
