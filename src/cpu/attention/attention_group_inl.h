// SPDX-License-Identifier: Apache-2.0
// Helpers shared by the ARM kernels for many queries of a KV head: quads of queries and their
// softmax.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include "cpu/attention/attention_arm_inl.h"

namespace spillway {
namespace {

constexpr int64_t kFewestQueries = 3;  // of a KV head; with fewer, lanes would be idle
constexpr int64_t kQuad = 4;
constexpr int kProbabilityBits = 6;  // probabilities are 64 times larger: small ones stay normal

// Queries [query, query + count) of a tile, which take the place of four.
struct QuadQueries {
  int64_t query, count;
};
static inline int64_t quads_of(int64_t queries_per_head) {
  return (queries_per_head + kQuad - 1) / kQuad;
}
// Returns quad n of a tile.
static inline QuadQueries quad_queries(int64_t n, int64_t queries_per_head) {
  const int64_t per_head = quads_of(queries_per_head), first = n % per_head * kQuad;
  return {n / per_head * queries_per_head + first, smaller(queries_per_head - first, kQuad)};
}

// The keys of the cut that each query attends to, and those that all do.
struct SeenKeys {
  int32_t begin[kQuad], end[kQuad];
  int64_t all_begin, all_end;
};
static inline SeenKeys seen_keys(const AttentionArgs& a, const AttentionTile& tile,
                                 const CutRange& range, const QuadQueries& quad) {
  SeenKeys seen;
  seen.all_begin = 0;
  seen.all_end = kSplitKeys;
  const int64_t per_head = tile.rows * a.group;
  for (int64_t j = 0; j < kQuad; ++j) {
    const int64_t query = quad.query + smaller(j, quad.count - 1);
    const int64_t position = tile.position + query % per_head / a.group;
    const int64_t begin = larger(first_seen(a, position), range.base) - range.base;
    const int64_t end = larger(smaller(position + 1 - range.base, kSplitKeys), 0);
    seen.begin[j] = static_cast<int32_t>(begin);
    seen.end[j] = static_cast<int32_t>(end);
    seen.all_begin = larger(seen.all_begin, begin);
    seen.all_end = smaller(seen.all_end, end);
  }
  return seen;
}

// Multiplies scores by `scale` and sets them to kNoScore where a key is masked for a query. Returns
// the maxima, and in `finite` whether all scores are.
static inline float32x4_t scale_scores(const SeenKeys& seen, int64_t from, int64_t to,
                                       const float* scale, float* scores, bool* finite) {
  const float32x4_t factor = vld1q_f32(scale), none = vdupq_n_f32(kNoScore);
  const int32x4_t seen_begin = vld1q_s32(seen.begin), seen_end = vld1q_s32(seen.end);
  float32x4_t top[4] = {none, none, none, none}, check[4] = {};  // 0 times infinity is NaN
  const auto hide = [&](int64_t key, int64_t end) __attribute__((always_inline)) {
    for (; key < end; ++key) {
      const int32x4_t at = vdupq_n_s32(static_cast<int32_t>(key));
      const uint32x4_t visible = vandq_u32(vcgeq_s32(at, seen_begin), vcltq_s32(at, seen_end));
      const float32x4_t scaled = vmulq_f32(vld1q_f32(scores + key * kQuad), factor);
      const float32x4_t s = vbslq_f32(visible, scaled, none);
      vst1q_f32(scores + key * kQuad, s);
      top[0] = vmaxq_f32(top[0], s);
      check[0] = vfmaq_n_f32(check[0], s, 0);
    }
  };
  const int64_t begin = smaller(larger((seen.all_begin + 3) / 4 * 4, from), to);
  const int64_t end = larger(smaller(seen.all_end / 4 * 4, to), begin);
  hide(from, begin);
  const float32x4_t zero = vdupq_n_f32(0);
  for (int64_t key = begin; key < end; key += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      float* at = scores + (key + i) * kQuad;
      const float32x4_t s = vmulq_f32(vld1q_f32(at), factor);
      vst1q_f32(at, s);
      top[i] = vmaxq_f32(top[i], s);
      check[i] = vfmaq_f32(check[i], s, zero);
    }
  }
  hide(end, to);
  const float sum =
      vaddvq_f32(vaddq_f32(vaddq_f32(check[0], check[1]), vaddq_f32(check[2], check[3])));
  *finite = sum == 0;
  return vmaxq_f32(vmaxq_f32(top[0], top[1]), vmaxq_f32(top[2], top[3]));
}

// Computes 64 * 2^(x - base) for 2 * n keys of a quad, 0 below 2^-22. Each step is done for all
// before the next, as the processor cannot look far enough ahead to overlap them.
template <int n>
[[gnu::always_inline]] static inline void exp2_keys(const float* scores, float32x4_t base,
                                                    float16x8_t* p) {
  // Adding to this rounds to an integer, left in the low bits.
  const float16x8_t shift = vdupq_n_f16(1536), low = vdupq_n_f16(-40);
  // The error is below 1.1e-4 for |r| <= 1/2, and 2^0 is 1; the factors are rounded to halves, and
  // times 64.
  static_assert(kProbabilityBits == 6);
  const float16x8_t c0 = vdupq_n_f16(64), c1 = vdupq_n_f16(static_cast<float16_t>(44.375F)),
                    c2 = vdupq_n_f16(15.5F), c3 = vdupq_n_f16(static_cast<float16_t>(3.51953125F));
  float16x8_t x[n], t[n];
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    x[i] = vcvt_high_f16_f32(vcvt_f16_f32(vsubq_f32(vld1q_f32(scores + 8 * i), base)),
                             vsubq_f32(vld1q_f32(scores + 8 * i + 4), base));
  }
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) x[i] = vmaxq_f16(x[i], low);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) t[i] = vsubq_f16(shift, x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = vsubq_f16(t[i], shift);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) x[i] = vaddq_f16(x[i], p[i]);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = vfmaq_f16(c2, c3, x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = vfmaq_f16(c1, p[i], x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = vfmaq_f16(c0, p[i], x[i]);
    // The integer is subtracted from the exponent; the subtraction saturates at zero.
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    p[i] = vreinterpretq_f16_u16(
        vqsubq_u16(vreinterpretq_u16_f16(p[i]), vshlq_n_u16(vreinterpretq_u16_f16(t[i]), 10)));
  }
}

// Converts scores [256][4] of a quad to probabilities, times 64: put(key, p) takes those of 8 keys,
// [8][4]. Returns false if a score is not finite.
template <class Put>
static inline bool softmax(const AttentionArgs& a, const AttentionTile& tile, const CutRange& range,
                           const QuadQueries& quad, const float* scale, float* scores,
                           const AttentionPartial& result, Put&& put) {
  const int64_t from = range.first / kPageTokens * kPageTokens;
  const int64_t to = (range.end + kPageTokens - 1) / kPageTokens * kPageTokens;
  bool finite;
  const float32x4_t maximum =
      scale_scores(seen_keys(a, tile, range, quad), from, to, scale, scores, &finite);
  if (!finite) return false;
  // The probabilities of a query that attends to nothing must become 0.
  const uint32x4_t none = vceqq_f32(maximum, vdupq_n_f32(kNoScore));
  const float32x4_t base = vbslq_f32(none, vdupq_n_f32(0), maximum);
  const float16x8_t unit = vdupq_n_f16(1.0F / (1 << kProbabilityBits));
  float32x4_t even = vdupq_n_f32(0), odd = even;
  for (int64_t key = from; key < to; key += 16) {
    float16x8_t p[8];
    exp2_keys<8>(scores + key * kQuad, base, p);
    put(key, p);
    put(key + 8, p + 4);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      even = vfmlalq_low_f16(even, p[i], unit);
      odd = vfmlalq_high_f16(odd, p[i], unit);
    }
  }
  float maxima[kQuad], sums[kQuad];
  vst1q_f32(maxima, vbslq_f32(none, maximum, vmulq_n_f32(maximum, 0.693147181F)));
  vst1q_f32(sums, vaddq_f32(even, odd));
  for (int64_t j = 0; j < quad.count; ++j) {
    result.maximum[quad.query + j] = maxima[j];
    result.sum[quad.query + j] = sums[j];
  }
  return true;
}

}  // namespace
}  // namespace spillway
