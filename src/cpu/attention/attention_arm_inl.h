// SPDX-License-Identifier: Apache-2.0
// Helpers shared by the ARM kernels of attention: the order of keys, softmax, rows of odd sizes.
//
// A cut of 256 keys is 4 blocks of 4 pages. The pages of a block are read in rotation, 8 tokens (an
// octet) of each, and a tile's KV heads one after the other, so that a thread reads four distant
// streams concurrently: a single one, or single pages, do not reach the memory's speed.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "cpu/attention/attention_args.h"
#include "cpu/attention/attention_exp2.h"

namespace spillway {
namespace {

constexpr float kNoScore = -3.0e38F;  // below any score
constexpr int64_t kBlockKeys = 64, kBlockPages = 4, kOctet = 8;
constexpr int64_t kOctets = kBlockKeys / kOctet;

// Octet i is half i % 2 of page i / 2. This is the order in which octets are read.
constexpr int64_t kOctetOrder[kOctets] = {0, 2, 4, 6, 1, 3, 5, 7};

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// The keys of one cut that some query of the tile attends to, relative to the cut, and the blocks
// that contain them.
struct CutRange {
  int64_t base, first, end, first_block, end_block;
};
static inline int64_t first_seen(const AttentionArgs& a, int64_t position) {
  return a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
}
static inline CutRange cut_range(const AttentionArgs& a, const AttentionTile& tile, int64_t split) {
  CutRange range;
  range.base = split * kSplitKeys;
  range.first = larger(first_seen(a, tile.position), range.base) - range.base;
  range.end = smaller(tile.position + tile.rows, range.base + kSplitKeys) - range.base;
  range.first_block = range.first / kBlockKeys;
  range.end_block = (range.end + kBlockKeys - 1) / kBlockKeys;
  return range;
}

// The pages of a block for the tile's first KV head; the next head's follow. A page outside the
// range is replaced by one inside, and the kernels that read it mask its rows.
struct BlockPages {
  const uint8_t* page[kBlockPages];
};
static inline BlockPages block_pages(const AttentionArgs& a, const AttentionTile& tile,
                                     const CutRange& range, const uint8_t* plane, int64_t block) {
  BlockPages pages;
  const int64_t first = (range.base + range.first) / kPageTokens;
  const int64_t last = (range.base + range.end - 1) / kPageTokens;
  for (int64_t i = 0; i < kBlockPages; ++i) {
    const int64_t page = range.base / kPageTokens + block * kBlockPages + i;
    const int64_t n = smaller(larger(page, first), last);
    pages.page[i] = plane + (tile.blocks[n] * a.kv_heads + tile.kv_head) * a.layout.bytes;
  }
  return pages;
}
static inline void next_head(const AttentionArgs& a, BlockPages& pages) {
  for (int64_t i = 0; i < kBlockPages; ++i) pages.page[i] += a.layout.bytes;
}

// The addresses of the rows of a block: token t of page i is at page[i] + t * stride.
struct BlockRows {
  const uint8_t* page[kBlockPages];
  int64_t stride;
};
// Returns the rows of a block. Rows whose size is not a multiple of 16 bytes are copied to `padded`
// [64, columns] with zeros after them, so that kernels need no tails. If only keys [low, high) of
// the block were stored, rows are copied too, with zeros for the others: 0 times NaN would be NaN.
static inline BlockRows block_rows(const AttentionArgs& a, const BlockPages& pages, int64_t columns,
                                   int64_t low, int64_t high, uint8_t* padded) {
  const int64_t bytes = a.layout.row_bytes;
  BlockRows rows;
  if (bytes == columns && low <= 0 && high >= kBlockKeys) {
    for (int64_t i = 0; i < kBlockPages; ++i) rows.page[i] = pages.page[i] + a.layout.codes_at;
    rows.stride = bytes;
    return rows;
  }
  for (int64_t key = 0; key < kBlockKeys; ++key) {
    uint8_t* to = padded + key * columns;
    const bool stored = key >= low && key < high;
    const uint8_t* from =
        pages.page[key / kPageTokens] + a.layout.codes_at + key % kPageTokens * bytes;
    if (stored) memcpy(to, from, static_cast<size_t>(bytes));
    memset(to + (stored ? bytes : 0), 0, static_cast<size_t>(columns - (stored ? bytes : 0)));
  }
  for (int64_t i = 0; i < kBlockPages; ++i) rows.page[i] = padded + i * kPageTokens * columns;
  rows.stride = columns;
  return rows;
}
// Returns token i of an octet.
[[gnu::always_inline]] static inline const uint8_t* row_at(const BlockRows& rows, int64_t octet,
                                                           int64_t i) {
  return rows.page[octet / 2] + (octet % 2 * kOctet + i) * rows.stride;
}

static inline const float* query_at(const AttentionArgs& a, const AttentionTile& tile, int64_t i) {
  const int64_t per_head = tile.rows * a.group;
  return a.q + (tile.first_row + i % per_head / a.group) * a.q_stride +
         ((tile.kv_head + i / per_head) * a.group + i % a.group) * a.head_dim;
}

// Sets `factor` to the power of two that puts the largest of n elements at 2^14, within the range
// of a float; returns its inverse.
static inline float half_range(const float* q, int64_t n, float* factor) {
  float32x4_t top = vdupq_n_f32(0);
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) top = vmaxq_f32(top, vabsq_f32(vld1q_f32(q + i)));
  float largest = vmaxvq_f32(top);
  for (; i < n; ++i) {
    const float value = q[i] < 0 ? -q[i] : q[i];
    largest = value > largest ? value : largest;
  }
  uint32_t bits;
  memcpy(&bits, &largest, 4);
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 255) - 127;
  const int32_t shift = exponent < -100 ? 114 : 14 - (exponent > 127 ? 127 : exponent);
  const uint32_t up = static_cast<uint32_t>(127 + shift) << 23;
  const uint32_t down = static_cast<uint32_t>(127 - shift) << 23;
  float inverse;
  memcpy(factor, &up, 4);
  memcpy(&inverse, &down, 4);
  return inverse;
}

// Converts n elements times `factor` to halves.
static inline void round_halves(const float* x, int64_t n, float factor, float16_t* out) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    vst1q_f16(out + i, vcvt_high_f16_f32(vcvt_f16_f32(vmulq_n_f32(vld1q_f32(x + i), factor)),
                                         vmulq_n_f32(vld1q_f32(x + i + 4), factor)));
  }
  for (; i < n; ++i) out[i] = static_cast<float16_t>(x[i] * factor);
}

// ---- Kernels limited by arithmetic ----
//
// They read page after page with the tile's KV heads one after the other, in the order of memory: a
// stream that the processor can follow. Blocks of four pages would fall into the same sets of the
// nearest cache, since their distances are powers of two, and be evicted before they are used
// again. Prefetch instructions gained nothing on Neoverse V1.

// The pages of a cut that hold keys which some query attends to, in the order in which they are
// read: keys before values, heads within pages.
struct CutPages {
  const int32_t* blocks;  // of the sequence, from the cut's first page on
  int64_t first, end;     // pages of the cut
};
static inline CutPages cut_pages(const AttentionTile& tile, const CutRange& range) {
  const int64_t base = range.base / kPageTokens;
  return {tile.blocks + base, range.first / kPageTokens,
          (range.end + kPageTokens - 1) / kPageTokens};
}
static inline const uint8_t* page_at(const AttentionArgs& a, const AttentionTile& tile,
                                     const CutPages& pages, const uint8_t* plane, int64_t page,
                                     int64_t head) {
  return plane + (pages.blocks[page] * a.kv_heads + tile.kv_head + head) * a.layout.bytes;
}
// The rows of one page, as block_rows() gives them; padded: [16, columns].
struct PageRows {
  const uint8_t* at;
  int64_t stride;
};
static inline PageRows page_rows(const AttentionArgs& a, const uint8_t* page, int64_t columns,
                                 int64_t low, int64_t high, uint8_t* padded) {
  const int64_t bytes = a.layout.row_bytes;
  if (bytes == columns && low <= 0 && high >= kPageTokens) {
    return {page + a.layout.codes_at, bytes};
  }
  for (int64_t token = 0; token < kPageTokens; ++token) {
    uint8_t* to = padded + token * columns;
    const int64_t size = token >= low && token < high ? bytes : 0;
    memcpy(to, page + a.layout.codes_at + token * bytes, static_cast<size_t>(size));
    memset(to + size, 0, static_cast<size_t>(columns - size));
  }
  return {padded, columns};
}

// Computes x = 2^x for n vectors of x <= 0; 0 below -126 and for NaN. x = i + r with |r| <= 1/2,
// and a polynomial for 2^r whose relative error is below 3e-7. Each step is done for all vectors
// before the next, because the processor does not look far enough ahead to overlap whole vectors.
template <int n>
[[gnu::always_inline]] static inline void exp2_all(float32x4_t* x) {
  // Adding 3 * 2^22 rounds to an integer and leaves it in the low bits; conversions would run at
  // one vector per cycle.
  const float32x4_t low = vdupq_n_f32(-126), shift = vdupq_n_f32(12582912);
  float32x4_t r[n], p[n];
  uint32x4_t seen[n];
  int32x4_t exponent[n];
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) seen[i] = vcgtq_f32(x[i], low);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) x[i] = vmaxq_f32(x[i], low);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = vaddq_f32(x[i], shift);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) r[i] = vsubq_f32(p[i], shift);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    exponent[i] = vshlq_n_s32(vreinterpretq_s32_f32(p[i]), 23);
    r[i] = vsubq_f32(x[i], r[i]);
    p[i] = vdupq_n_f32(kExp2Factors[0]);
  }
#pragma GCC unroll 8
  for (int k = 1; k < 7; ++k) {
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) p[i] = vfmaq_f32(vdupq_n_f32(kExp2Factors[k]), p[i], r[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    const int32x4_t bits = vaddq_s32(vreinterpretq_s32_f32(p[i]), exponent[i]);
    x[i] = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(bits), seen[i]));
  }
}
static inline float32x4_t exp2_f32(float32x4_t x) {
  exp2_all<1>(&x);
  return x;
}

// Returns 0, or NaN if a maximum of scores is NaN (vmaxq_f32 keeps it) or infinite. It is added to
// a sum of exponents, which drop NaN, and makes every element of the result NaN.
static inline float nan_unless_finite(float maximum) { return maximum - maximum; }

// Replaces the scores [256] of query i by e^(scale * score - maximum), and by 0 for masked keys.
static inline void softmax_query(const AttentionArgs& a, const AttentionTile& tile,
                                 const CutRange& range, int64_t i, float scale, float* scores,
                                 const AttentionPartial& result) {
  const int64_t position = tile.position + i % (tile.rows * a.group) / a.group;
  scale *= 1.44269504F;  // powers of two are quicker
  const int64_t begin = larger(first_seen(a, position), range.base) - range.base;
  const int64_t end = smaller(position + 1, range.base + kSplitKeys) - range.base;
  const int64_t from = range.first_block * kBlockKeys, to = range.end_block * kBlockKeys;
  result.maximum[i] = kNoScore;
  result.sum[i] = 0;
  if (begin >= end) {
    memset(scores + from, 0, static_cast<size_t>(to - from) * sizeof(float));
    return;
  }
  float32x4_t top = vdupq_n_f32(kNoScore);
  for (int64_t block = from; block < to; block += kBlockKeys) {
    if (begin <= block && block + kBlockKeys <= end) {
      for (int64_t j = block; j < block + kBlockKeys; j += 4) {
        const float32x4_t s = vmulq_n_f32(vld1q_f32(scores + j), scale);
        vst1q_f32(scores + j, s);
        top = vmaxq_f32(top, s);
      }
      continue;
    }
    const int32x4_t lowest = vdupq_n_s32(static_cast<int32_t>(begin - block));
    const int32x4_t highest = vdupq_n_s32(static_cast<int32_t>(end - block));
    constexpr int32_t kFirstFour[4] = {0, 1, 2, 3};
    for (int64_t j = 0; j < kBlockKeys; j += 4) {
      const int32x4_t key = vaddq_s32(vld1q_s32(kFirstFour), vdupq_n_s32(static_cast<int32_t>(j)));
      const uint32x4_t seen = vandq_u32(vcgeq_s32(key, lowest), vcltq_s32(key, highest));
      const float32x4_t s = vmulq_n_f32(vld1q_f32(scores + block + j), scale);
      const float32x4_t masked = vbslq_f32(seen, s, vdupq_n_f32(kNoScore));
      vst1q_f32(scores + block + j, masked);
      top = vmaxq_f32(top, masked);
    }
  }
  const float maximum = vmaxvq_f32(top);
  const float32x4_t maxima = vdupq_n_f32(maximum);
  float32x4_t sum0 = vdupq_n_f32(0), sum1 = sum0;
  for (int64_t j = from; j < to; j += 16) {
    float32x4_t p[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) p[v] = vsubq_f32(vld1q_f32(scores + j + 4 * v), maxima);
    exp2_all<4>(p);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) vst1q_f32(scores + j + 4 * v, p[v]);
    sum0 = vaddq_f32(vaddq_f32(sum0, p[0]), p[2]);
    sum1 = vaddq_f32(vaddq_f32(sum1, p[1]), p[3]);
  }
  result.maximum[i] = maximum * 0.693147181F;
  result.sum[i] = vaddvq_f32(vaddq_f32(sum0, sum1)) + nan_unless_finite(maximum);
}

}  // namespace
}  // namespace spillway
