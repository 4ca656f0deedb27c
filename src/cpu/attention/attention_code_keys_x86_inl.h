// SPDX-License-Identifier: Apache-2.0
// Scores of queries for keys of int8 or int4 on x86, with any of its sets of vectors `V`.
//
// A page is turned so that lanes are keys, four codes of each: no sums across lanes, and a query's
// operand is a broadcast word. Turning costs four shuffles per line of 64 bytes, once for all
// queries.
//
// Only static functions: each object that includes this is compiled for instructions of its own.
#pragma once

#include "cpu/attention/attention_code_groups_inl.h"
#include "cpu/attention/attention_integers_x86_inl.h"

namespace spillway {
namespace {

struct RoundedQuery {
  float scale[kMostGroups], sum[kMostGroups];
  int32_t start[kMostGroups];  // of a sum of products
};
struct RoundedQueries {
  RoundedQuery query[kTileQueries];
  uint8_t* operands;  // [queries, padded_dim / 4, 2 words]
};

// One query as operands, [padded_dim / 4, 2 words].
template <class V, bool kInt4>
static inline RoundedQuery round_query(const KvPageLayout& layout, const float* q, uint8_t* out) {
  RoundedQuery rounded;
  for (int64_t g = 0; g < layout.groups; ++g, out += 2 * kKvGroup) {
    float x[kKvGroup] = {};
    const int64_t size = group_size(layout, g);
    memcpy(x, q + g * kKvGroup, static_cast<size_t>(size) * sizeof(float));
    auto top = V::set(0), sum = V::set(0), check = V::set(0);
    for (int64_t i = 0; i < kKvGroup; i += V::kLanes) {
      const auto value = V::load(x + i);
      top = V::max(V::magnitude(value), top);
      sum = V::add(sum, value);
      check = V::fma(value, V::set(0), check);
    }
    const float largest = V::largest(top);
    // NaN where an element is not finite: no score is a number then.
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
                          V::split_query(V::template pack16<false>(sixteen)));
    }
    // Codes of int8 were made unsigned.
    rounded.start[g] = times(kInt4 ? -kInt4Mean : -128, sum_lanes<V>(total));
  }
  return rounded;
}

// Where the codes of a turned page go: word c of the rows to low[c], for int4 the high halves to
// high[c]. In words, in the order of elements.
struct Words {
  int64_t count;
  uint8_t low[64], high[64];
};
template <bool kInt4>
static inline Words words_of(const KvPageLayout& layout) {
  Words words{layout.row_bytes / 4, {}, {}};
  for (int64_t c = 0; c < words.count; ++c) {
    const int64_t group = c / (kKvGroup / 8), within = c % (kKvGroup / 8);
    words.low[c] = static_cast<uint8_t>(kInt4 ? group * (kKvGroup / 4) + within : c);
    if (kInt4) words.high[c] = static_cast<uint8_t>(words.low[c] + group_size(layout, group) / 8);
  }
  return words;
}

// A page of keys as operands.
template <class V, bool kInt4>
[[gnu::noinline]] static void turn_page(const KvPageLayout& layout, const Words& words,
                                        const uint8_t* page, uint8_t* out) {
  constexpr int64_t kBlocks = kPageTokens / V::kLanes;
  for (int64_t block = 0; block < kBlocks; ++block) {
    const uint8_t* rows = page + layout.codes_at + block * V::kLanes * layout.row_bytes;
    uint8_t* to = out + block * V::kCodeBytes;
#pragma GCC unroll 1
    for (int64_t c = 0; c < words.count; c += V::kLanes) {
      const auto put = [&](int64_t i, typename V::Ints x) __attribute__((always_inline)) {
        constexpr int64_t kWordBytes = kBlocks * V::kCodeBytes;
        if constexpr (kInt4) {
          V::store_codes(to + words.low[c + i] * kWordBytes, V::low_halves(x));
          V::store_codes(to + words.high[c + i] * kWordBytes, V::high_halves(x));
        } else {
          V::store_codes(to + (c + i) * kWordBytes, V::to_unsigned(x));
        }
      };
      V::turn(rows + 4 * c, layout.row_bytes, words.count - c, put);
    }
  }
}

// Adds a group of elements, `words` words of four, to the scores of Q queries for 16 keys:
// scores += (dot * query_scale) * scales + query_sum * means.
template <class V, bool kInt4, int Q>
[[gnu::noinline]] static void score_group(const uint8_t* turned, int64_t words, const uint8_t* q,
                                          int64_t q_stride, const RoundedQuery* queries,
                                          int64_t group, const float* scales, const float* means,
                                          float* scores) {
  constexpr int64_t kBlocks = kPageTokens / V::kLanes;
#pragma GCC unroll 1
  for (int64_t block = 0; block < kBlocks; ++block) {
    const uint8_t* from = turned + block * V::kCodeBytes;
    typename V::Sums sums[Q];
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      sums[i] = {V::set_ints(0), V::set_ints(queries[i].start[group])};
    }
#pragma GCC unroll 1
    for (int64_t c = 0; c < words; ++c) {
      const auto codes = V::load_codes(from + c * kBlocks * V::kCodeBytes);
#pragma GCC unroll 8
      for (int i = 0; i < Q; ++i) V::add_keys(sums[i], codes, q + i * q_stride + 8 * c);
    }
    const int64_t at = block * V::kLanes;
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

// Scores of `count` queries of a kv head, whose operands are [count, padded_dim / 4, 2 words], for
// a page. memory: [head_dim / 4, 16 keys], of V::kCodeBytes per V::kLanes keys.
template <class V, bool kInt4>
static inline void score_page(const AttentionArgs& a, const Words& words, const uint8_t* page,
                              const uint8_t* operands, const RoundedQuery* queries, int64_t count,
                              uint8_t* memory, float* scores) {
  const KvPageLayout& layout = a.layout;
  const int64_t q_stride = 2 * a.padded_dim;
  turn_page<V, kInt4>(layout, words, page, memory);
  for (int64_t g = 0; g < layout.groups; ++g) {
    alignas(64) float scales[kPageTokens], means[kPageTokens] = {};
    load_sixteen<V>(page + 2 * g * kPageTokens, scales);
    if constexpr (kInt4) {
      load_sixteen<V>(page + layout.mins_at + 2 * g * kPageTokens, means);
      add_means<V>(scales, means);
    }
    const uint8_t* turned = memory + g * (kKvGroup / 4) * (kPageTokens / V::kLanes) * V::kCodeBytes;
    for (int64_t i = 0; i < count; i += V::kMostQueries) {
      with_count<V::kMostQueries>(
          count - i, [&]<int Q>() __attribute__((always_inline)) {
            score_group<V, kInt4, Q>(turned, group_size(layout, g) / 4,
                                     operands + i * q_stride + 2 * g * kKvGroup, q_stride,
                                     queries + i, g, scales, means, scores + i * kSplitKeys);
          });
    }
  }
}

}  // namespace
}  // namespace spillway
