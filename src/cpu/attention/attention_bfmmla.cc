// SPDX-License-Identifier: Apache-2.0
// Prefill attention with ARM's matrix multiplications, of bytes for scores and of bfloat16 for
// values. The file is compiled for them, so it contains nothing else.
//
// Softmax raises e to the scores, and with them their errors: so queries and keys are 16-bit
// integers, high and low bytes separate, and the smallest of their four products is left out. Sums
// are exact, and three products of bytes take as long as one and a half of bfloat16. Probabilities
// and values are averaged, and so are their errors: bfloat16 suffices.
//
// An operand of the instructions is two rows of 8 bytes: 8 columns or 4 bfloat16. The keys and
// values of a cut (256 keys) are converted once for all queries of a tile: keys to strips of eight,
// [2 parts][dim / 8][4 key pairs][2][8]; values to strips of eight columns, [keys / 4][4 column
// pairs][2][4]. Queries go through a cut in groups of ten (a subtile), [2 parts][dim / 8][5 query
// pairs][2][8]: their scores, their probabilities as operands [keys / 4][5][2][4], and their sums,
// which are kept scaled to the largest score so far (online softmax: FlashAttention, section 3.1).
// Five pairs by four are 20 sums in registers, with nine loads for 20 products.
#include "cpu/attention/attention_arm_inl.h"
#include "cpu/attention/attention_kernels.h"

namespace spillway {
namespace {

constexpr int kQueryPairs = 5, kStripPairs = 4;
constexpr int64_t kSubtile = 2 * kQueryPairs, kStrip = 2 * kStripPairs;
constexpr int64_t kQuads = (kSubtile + 3) / 4;  // of a subtile, rounded up
static_assert(kPrefillQueries % kSubtile == 0 && kSubtile <= 10);

// The parts of the scratch memory. Their sizes are counted in prefill_scratch_floats(). dim is
// head_dim rounded up to 8.
struct Scratch {
  float* out;          // [queries, dim]
  float* maximum;      // [queries]
  float* sum;          // [queries]
  float* query_scale;  // [queries]
  float* key_scale;    // [256 / 16], one per page
  float* scores;       // [5 query pairs][256 / 4][2][4]
  float* rows;         // [16, dim]
  int8_t* q;           // [queries / 10][2 parts][dim / 8][5][2][8]
  int8_t* keys;        // [256 / 8][2 parts][dim / 8][4][2][8]
  uint16_t* values;    // [dim / 8][256 / 4][4][2][4]
  uint16_t* p;         // [256 / 4][5][2][4]
};
static inline Scratch cut_scratch(float* memory, int64_t dim) {
  Scratch s;
  s.scores = memory;
  s.p = reinterpret_cast<uint16_t*>(s.scores + kSubtile * kSplitKeys);
  s.values = s.p + kSubtile * kSplitKeys;
  s.keys = reinterpret_cast<int8_t*>(s.values + kSplitKeys * dim);
  s.q = s.keys + 2 * kSplitKeys * dim;
  s.rows = reinterpret_cast<float*>(s.q + 2 * kPrefillQueries * dim);
  s.out = s.rows + kPageTokens * dim;
  s.maximum = s.out + kPrefillQueries * dim;
  s.sum = s.maximum + kPrefillQueries;
  s.query_scale = s.sum + kPrefillQueries;
  s.key_scale = s.query_scale + kPrefillQueries;
  return s;
}

// Rounds to the nearest, ties away from zero, in half the time of the conversion instruction.
[[gnu::always_inline]] static inline uint16x8_t round_pair(float32x4_t first, float32x4_t second) {
  return vrshrn_high_n_u32(vrshrn_n_u32(vreinterpretq_u32_f32(first), 16),
                           vreinterpretq_u32_f32(second), 16);
}

// Returns a zero that the compiler does not know: otherwise it shares one register for all sums at
// first and moves them about in the loop.
[[gnu::always_inline]] static inline float32x4_t fresh_zero() {
  float32x4_t v;
  asm volatile("movi %0.4s, #0" : "=w"(v));
  return v;
}

// sum[p][j] has (row 0, column 0), (0, 1), (1, 0), (1, 1) of query pair p and the strip's pair j.
struct TileSums {
  float32x4_t sum[kQueryPairs][kStripPairs];

  // Returns columns 4 * half to 4 * half + 3 of a row of pair p.
  [[gnu::always_inline]] float32x4_t row(int p, int row, int half) const {
    const float64x2_t a = vreinterpretq_f64_f32(sum[p][2 * half]);
    const float64x2_t b = vreinterpretq_f64_f32(sum[p][2 * half + 1]);
    return vreinterpretq_f32_f64(row == 0 ? vzip1q_f64(a, b) : vzip2q_f64(a, b));
  }
};

// Multiplies x [steps][5][2][4] with y [steps][4][2][4]; the number of steps is even.
[[gnu::always_inline]] static inline void multiply(const uint16_t* x, const uint16_t* y,
                                                   int64_t steps, TileSums& result) {
  float32x4_t sum[kQueryPairs][kStripPairs];
#pragma GCC unroll 6
  for (int p = 0; p < kQueryPairs; ++p) {
#pragma GCC unroll 6
    for (int j = 0; j < kStripPairs; ++j) sum[p][j] = fresh_zero();
  }
#pragma GCC unroll 1
  for (int64_t i = 0; i < steps; i += 2) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      bfloat16x8_t queries[kQueryPairs];
#pragma GCC unroll 6
      for (int p = 0; p < kQueryPairs; ++p) {
        queries[p] = vreinterpretq_bf16_u16(vld1q_u16(x + (half * kQueryPairs + p) * 8));
      }
#pragma GCC unroll 6
      for (int j = 0; j < kStripPairs; ++j) {
        const bfloat16x8_t strip =
            vreinterpretq_bf16_u16(vld1q_u16(y + (half * kStripPairs + j) * 8));
#pragma GCC unroll 6
        for (int p = 0; p < kQueryPairs; ++p) {
          sum[p][j] = vbfmmlaq_f32(sum[p][j], queries[p], strip);
        }
      }
    }
    x += 2 * 8 * kQueryPairs;
    y += 2 * 8 * kStripPairs;
  }
#pragma GCC unroll 6
  for (int p = 0; p < kQueryPairs; ++p) {
#pragma GCC unroll 6
    for (int j = 0; j < kStripPairs; ++j) result.sum[p][j] = sum[p][j];
  }
}

// ---- Conversion of keys and values to operands ----

static inline int64_t size_of_group(const KvPageLayout& layout, int64_t group) {
  return smaller(layout.head_dim - group * kKvGroup, kKvGroup);
}

static inline void half_row(const uint8_t* from, int64_t head_dim, float* to) {
  const auto* x = reinterpret_cast<const __fp16*>(from);
  int64_t i = 0;
  for (; i + 4 <= head_dim; i += 4) vst1q_f32(to + i, vcvt_f32_f16(vld1_f16(x + i)));
  for (; i < head_dim; ++i) to[i] = static_cast<float>(x[i]);
}

static inline void bfloat_row(const uint8_t* from, int64_t head_dim, float* to) {
  int64_t i = 0;
  for (; i + 4 <= head_dim; i += 4) {
    const uint16x4_t x = vld1_u16(reinterpret_cast<const uint16_t*>(from) + i);
    vst1q_u32(reinterpret_cast<uint32_t*>(to + i), vshll_n_u16(x, 16));
  }
  memset(to + i, 0, static_cast<size_t>(head_dim - i) * sizeof(float));
  for (; i < head_dim; ++i) memcpy(reinterpret_cast<uint8_t*>(to + i) + 2, from + 2 * i, 2);
}

// Sets to[0 .. 7] = base + scale * code.
[[gnu::always_inline]] static inline void eight_floats(int16x8_t codes, float scale, float base,
                                                       float* to) {
  const float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes)));
  const float32x4_t high = vcvtq_f32_s32(vmovl_s16(vget_high_s16(codes)));
  vst1q_f32(to, vfmaq_n_f32(vdupq_n_f32(base), low, scale));
  vst1q_f32(to + 4, vfmaq_n_f32(vdupq_n_f32(base), high, scale));
}

static inline float half_of(const uint8_t* page, int64_t index) {
  __fp16 half;
  memcpy(&half, page + 2 * index, 2);
  return static_cast<float>(half);
}

// Decodes row `token` of a page of keys of a quantized type.
static inline void code_row(const KvPageLayout& layout, const uint8_t* page, int64_t token,
                            float* to) {
  const bool int4 = layout.type == KvType::kInt4;
  for (int64_t g = 0; g < layout.groups; ++g) {
    const float scale = half_of(page, g * kPageTokens + token);
    const uint8_t* codes = page + layout.codes_at + token * layout.row_bytes;
    const int64_t size = size_of_group(layout, g);
    float* out = to + g * kKvGroup;
    if (!int4) {
      codes += g * kKvGroup;
      for (int64_t i = 0; i < size; i += 8) {
        const int8x8_t x = vreinterpret_s8_u8(vld1_u8(codes + i));
        eight_floats(vmovl_s8(x), scale, 0, out + i);
      }
      continue;
    }
    codes += g * kKvGroup / 2;
    const float base = half_of(page + layout.mins_at, g * kPageTokens + token);
    int64_t i = 0;
    for (; i + 8 <= size / 2; i += 8) {
      const uint8x8_t x = vld1_u8(codes + i);
      const uint16x8_t low = vmovl_u8(vand_u8(x, vdup_n_u8(15))), high = vmovl_u8(vshr_n_u8(x, 4));
      eight_floats(vreinterpretq_s16_u16(low), scale, base, out + i);
      eight_floats(vreinterpretq_s16_u16(high), scale, base, out + size / 2 + i);
    }
    for (; i < size / 2; ++i) {
      out[i] = base + scale * static_cast<float>(codes[i] & 15);
      out[size / 2 + i] = base + scale * static_cast<float>(codes[i] >> 4);
    }
  }
}

// Converts the page's rows to floats [16, dim]; tokens outside [low, high) and padding columns are
// zero.
static inline void page_rows(const KvPageLayout& layout, const uint8_t* page, int64_t low,
                             int64_t high, int64_t dim, float* rows) {
  for (int64_t t = 0; t < kPageTokens; ++t) {
    float* to = rows + t * dim;
    const bool stored = t >= low && t < high;
    const int64_t from = stored ? layout.head_dim : 0;
    memset(to + from, 0, static_cast<size_t>(dim - from) * sizeof(float));
    if (!stored) continue;
    if (is_half(layout.type)) {
      (layout.type == KvType::kF16 ? half_row : bfloat_row)(page + t * layout.row_bytes,
                                                            layout.head_dim, to);
    } else {
      code_row(layout, page, t, to);
    }
  }
}

constexpr float kLargest16 = 32512;  // 127 * 256: high bytes stay in -127 to 127

// Returns the largest magnitude of n values, a multiple of 8.
static inline float largest_of(const float* x, int64_t n) {
  float32x4_t top0 = vdupq_n_f32(0), top1 = top0;
  for (int64_t i = 0; i < n; i += 8) {
    top0 = vmaxq_f32(top0, vabsq_f32(vld1q_f32(x + i)));
    top1 = vmaxq_f32(top1, vabsq_f32(vld1q_f32(x + i + 4)));
  }
  return vmaxvq_f32(vmaxq_f32(top0, top1));
}

[[gnu::always_inline]] static inline int16x8_t eight_codes(const float* x, float factor) {
  const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), factor));
  const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4), factor));
  return vmovn_high_s32(vmovn_s32(low), high);
}

// Converts two rows times their factors to operands of both parts: [dim / 8][kPairs][2][8] each,
// the low bytes after all of the high ones.
template <int kPairs>
static inline void pack_pair(const float* first, const float* second, const float* factors,
                             int64_t dim, int8_t* to) {
  for (int64_t c = 0; c < dim; c += 8, to += 16 * kPairs) {
    const int16x8_t x = eight_codes(first + c, factors[0]), y = eight_codes(second + c, factors[1]);
    vst1q_s8(to, vrshrn_high_n_s16(vrshrn_n_s16(x, 8), y, 8));
    // The rest, modulo 256, is -128 to 127.
    vst1q_s8(to + 2 * kPairs * dim, vmovn_high_s16(vmovn_s16(x), y));
  }
}

// Packs a page's keys; `keys` is where its first strip goes. Returns the factor of the codes.
static inline float pack_keys(const float* rows, int64_t dim, int8_t* keys) {
  const float largest = largest_of(rows, kPageTokens * dim);
  const float factor = largest > 0 ? kLargest16 / largest : 0;
  const float factors[2] = {factor, factor};
  for (int64_t pair = 0; pair < kPageTokens / 2; ++pair) {
    const float* first = rows + 2 * pair * dim;
    pack_pair<kStripPairs>(first, first + dim, factors, dim,
                           keys + pair / kStripPairs * 2 * kStrip * dim + pair % kStripPairs * 16);
  }
  return largest / kLargest16;
}

// Returns where the operand of columns `column` and column + 1 is for keys [4 * step, 4 * step +
// 4).
[[gnu::always_inline]] static inline uint16_t* values_at(uint16_t* values, int64_t column,
                                                         int64_t step) {
  return values + column / kStrip * kStrip * kSplitKeys +
         (step * kStripPairs + column % kStrip / 2) * 8;
}

// Packs rows of floats, keys [4 * step, 4 * step + 16) of the cut.
static inline void pack_values(const float* rows, int64_t dim, int64_t step, uint16_t* values) {
  for (int64_t quad = 0; quad < kPageTokens / 4; ++quad, rows += 4 * dim) {
    for (int64_t c = 0; c < dim; c += 4) {
      const float32x4x2_t a = vtrnq_f32(vld1q_f32(rows + c), vld1q_f32(rows + dim + c));
      const float32x4x2_t b =
          vtrnq_f32(vld1q_f32(rows + 2 * dim + c), vld1q_f32(rows + 3 * dim + c));
      float32x4_t column[4];
      for (int i = 0; i < 2; ++i) {
        const float64x2_t x = vreinterpretq_f64_f32(a.val[i]), y = vreinterpretq_f64_f32(b.val[i]);
        column[i] = vreinterpretq_f32_f64(vzip1q_f64(x, y));
        column[2 + i] = vreinterpretq_f32_f64(vzip2q_f64(x, y));
      }
      vst1q_u16(values_at(values, c, step + quad), round_pair(column[0], column[1]));
      vst1q_u16(values_at(values, c + 2, step + quad), round_pair(column[2], column[3]));
    }
  }
}

// Writes two columns of 8 tokens, base + scale * code, with scales and bases of these tokens.
[[gnu::always_inline]] static inline void put_columns(int16x8_t first, int16x8_t second,
                                                      const float32x4_t* scale,
                                                      const float32x4_t* base, uint16_t* to) {
  const float32x4_t a0 = vcvtq_f32_s32(vmovl_s16(vget_low_s16(first)));
  const float32x4_t a1 = vcvtq_f32_s32(vmovl_s16(vget_high_s16(first)));
  const float32x4_t b0 = vcvtq_f32_s32(vmovl_s16(vget_low_s16(second)));
  const float32x4_t b1 = vcvtq_f32_s32(vmovl_s16(vget_high_s16(second)));
  vst1q_u16(to, round_pair(vfmaq_f32(base[0], a0, scale[0]), vfmaq_f32(base[0], b0, scale[0])));
  vst1q_u16(to + 8 * kStripPairs,
            round_pair(vfmaq_f32(base[1], a1, scale[1]), vfmaq_f32(base[1], b1, scale[1])));
}

// Loads 16 halves from `halves` on, with 0 for tokens outside [low, high).
static inline void masked_halves(const uint8_t* halves, int64_t low, int64_t high,
                                 float32x4_t* out) {
  float floats[kPageTokens];
  for (int64_t t = 0; t < kPageTokens; ++t) {
    floats[t] = t >= low && t < high ? half_of(halves, t) : 0;
  }
  for (int i = 0; i < 4; ++i) out[i] = vld1q_f32(floats + 4 * i);
}

// Does the same as pack_values() with pages of codes, whose order of values is almost that of
// operands.
static inline void pack_value_codes(const KvPageLayout& layout, const uint8_t* page, int64_t low,
                                    int64_t high, int64_t step, uint16_t* values) {
  const bool int4 = layout.type == KvType::kInt4;
  const uint8_t* codes = page + layout.codes_at;
  for (int64_t g = 0; g < layout.groups; ++g) {
    float32x4_t scale[4],
        base[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    masked_halves(page + 2 * g * kPageTokens, low, high, scale);
    if (int4) masked_halves(page + layout.mins_at + 2 * g * kPageTokens, low, high, base);
    const int64_t size = size_of_group(layout, g), bytes = int4 ? size / 2 : size;
    for (int64_t b = 0; b < bytes; b += 2) {
      const int64_t column = g * kKvGroup + b;
      for (int64_t half = 0; half < 2; ++half, codes += 16) {
        const uint8x16_t x = vld1q_u8(codes);
        const float32x4_t *s = scale + 2 * half, *m = base + 2 * half;
        if (int4) {
          const uint8x16_t low4 = vandq_u8(x, vdupq_n_u8(15)), high4 = vshrq_n_u8(x, 4);
          put_columns(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(low4))),
                      vreinterpretq_s16_u16(vmovl_high_u8(low4)), s, m,
                      values_at(values, column, step + 2 * half));
          put_columns(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(high4))),
                      vreinterpretq_s16_u16(vmovl_high_u8(high4)), s, m,
                      values_at(values, column + size / 2, step + 2 * half));
        } else {
          const int8x16_t y = vreinterpretq_s8_u8(x);
          put_columns(vmovl_s8(vget_low_s8(y)), vmovl_high_s8(y), s, m,
                      values_at(values, column, step + 2 * half));
        }
      }
    }
  }
}

// Packs all keys and values of a cut that some query of the tile attends to, page by page. The
// scale of a page's keys is that of all keys it has so far, including those that the tile does not
// attend to: how rows are divided into tiles must not change a single bit.
[[gnu::noinline]] static void pack_cut(const AttentionArgs& a, const AttentionTile& tile,
                                       const CutRange& range, int64_t dim, const Scratch& s) {
  for (int64_t at = range.first / kPageTokens * kPageTokens; at < range.end; at += kPageTokens) {
    const int64_t page = tile.blocks[(range.base + at) / kPageTokens] * a.kv_heads + tile.kv_head;
    const int64_t low = range.first - at, high = range.end - at;
    page_rows(a.layout, a.k + page * a.layout.bytes, 0, tile.keys - range.base - at, dim, s.rows);
    s.key_scale[at / kPageTokens] = pack_keys(s.rows, dim, s.keys + 2 * at * dim);
    const uint8_t* v = a.v + page * a.layout.bytes;
    if (is_half(a.layout.type)) {
      page_rows(a.layout, v, low, high, dim, s.rows);
      pack_values(s.rows, dim, at / 4, s.values);
    } else {
      pack_value_codes(a.layout, v, low, high, at / 4, s.values);
    }
  }
}

// Packs the tile's queries as operands, and their scales times `scale`; queries missing in the last
// ten, and padding columns, are zero.
static void pack_queries(const AttentionArgs& a, const AttentionTile& tile, int64_t queries,
                         int64_t dim, float scale, const Scratch& s) {
  int64_t row = tile.first_row, head = 0;
  for (int64_t i = 0; i < (queries + kSubtile - 1) / kSubtile * kSubtile; i += 2) {
    const float* rows[2];
    float factors[2];
    for (int64_t r = 0; r < 2; ++r) {
      rows[r] = i + r >= queries
                    ? nullptr
                    : a.q + row * a.q_stride + (tile.kv_head * a.group + head) * a.head_dim;
      if (++head == a.group) {
        ++row;
        head = 0;
      }
      if (rows[r] == nullptr || a.head_dim != dim) {
        float* padded = s.rows + r * dim;
        const int64_t size = rows[r] != nullptr ? a.head_dim : 0;
        if (size > 0) memcpy(padded, rows[r], static_cast<size_t>(size) * sizeof(float));
        memset(padded + size, 0, static_cast<size_t>(dim - size) * sizeof(float));
        rows[r] = padded;
      }
      const float largest = largest_of(rows[r], dim);
      factors[r] = largest > 0 ? kLargest16 / largest : 0;
      s.query_scale[i + r] = largest / kLargest16 * scale;
    }
    pack_pair<kQueryPairs>(rows[0], rows[1], factors, dim,
                           s.q + i / kSubtile * 2 * kSubtile * dim + i % kSubtile / 2 * 16);
  }
}

// ---- Softmax ----

// Calls f for each query pair, in registers.
template <class Fn>
[[gnu::always_inline]] static inline void for_pairs(Fn&& f) {
#pragma GCC unroll 6
  for (int i = 0; i < kQueryPairs; ++i) f(i);
}

// Computes 2^(x - base), rounded to bfloat16, for four keys of each query, for scores x <= base.
// Results below 2^-125 become something as small, and those of at most 2^-127 become zero: a masked
// key must not show, and since sums of products are rounded to odd, even the smallest number would.
// scores: [5 pairs][256 / 4][2][4]. Probabilities are rounded to 8 bits anyway: halves are precise
// enough on the way there, and take half as many instructions as floats. Each step is done for all
// pairs before the next, as the processor cannot look far enough ahead to overlap whole pairs.
[[gnu::always_inline]] static inline void exp2_bf16(const float* scores, const float32x4_t* base,
                                                    uint16x8_t* result) {
  // Adding this rounds to an integer, left in the low bits, plus the difference of the biases of
  // exponents: 15 in halves, 127 in bfloat16.
  const float16x8_t shift = vdupq_n_f16(1536 + 127 - 15);
  float32x4_t low[kQueryPairs], high[kQueryPairs];
  float16x8_t x[kQueryPairs], r[kQueryPairs], p[kQueryPairs];
  for_pairs([&](int i) __attribute__((always_inline)) {
    low[i] = vsubq_f32(vld1q_f32(scores + 2 * i * kSplitKeys), base[2 * i]);
    high[i] = vsubq_f32(vld1q_f32(scores + 2 * i * kSplitKeys + 4), base[2 * i + 1]);
  });
  for_pairs([&](int i) __attribute__((always_inline)) {
    x[i] = vcvt_high_f16_f32(vcvt_f16_f32(low[i]), high[i]);
  });
  for_pairs([&](int i)
                __attribute__((always_inline)) { x[i] = vmaxq_f16(x[i], vdupq_n_f16(-127)); });
  for_pairs([&](int i) __attribute__((always_inline)) { p[i] = vaddq_f16(x[i], shift); });
  for_pairs([&](int i) __attribute__((always_inline)) { r[i] = vsubq_f16(p[i], shift); });
  for_pairs([&](int i) __attribute__((always_inline)) {
    r[i] = vsubq_f16(x[i], r[i]);
    result[i] = vshlq_n_u16(vreinterpretq_u16_f16(p[i]), 7);
  });
  // The error is below 1.1e-4 for |r| <= 1/2, and 2^0 is 1.
  for_pairs([&](int i) __attribute__((always_inline)) {
    p[i] = vfmaq_f16(vdupq_n_f16(2.42211207e-1F), vdupq_n_f16(5.50073570e-2F), r[i]);
  });
  for_pairs([&](int i) __attribute__((always_inline)) {
    p[i] = vfmaq_f16(vdupq_n_f16(6.93283123e-1F), p[i], r[i]);
  });
  for_pairs([&](int i)
                __attribute__((always_inline)) { p[i] = vfmaq_f16(vdupq_n_f16(1), p[i], r[i]); });
  // p is 0.7 to 1.5. Its mantissa loses 3 bits; the integer is added to its exponent.
  for_pairs([&](int i) __attribute__((always_inline)) {
    result[i] = vrsraq_n_u16(result[i], vreinterpretq_u16_f16(p[i]), 3);
  });
}

// The visible keys [begin, end) of the cut.
struct Seen {
  int64_t begin, end;
};
static inline Seen seen_by(const AttentionArgs& a, const CutRange& range, int64_t position) {
  return {larger(first_seen(a, position) - range.base, 0),
          smaller(position + 1 - range.base, kSplitKeys)};
}

// Sets scores of keys in [from, to) that are masked for a query to kNoScore. Later queries attend
// to no earlier keys than those before them, and to no fewer at the end.
static inline void hide_keys(const Seen* seen, int64_t from, int64_t to, float* scores) {
  const int64_t all_begin = (seen[kSubtile - 1].begin + 3) / 4 * 4;
  const int64_t all_end = seen[0].end / 4 * 4;
  constexpr int32_t kFirstFour[4] = {0, 1, 2, 3};
  for (int64_t key = from; key < to; key += 4) {
    if (key >= all_begin && key < all_end) {
      key = all_end - 4;
      continue;
    }
    const int32x4_t keys = vaddq_s32(vld1q_s32(kFirstFour), vdupq_n_s32(static_cast<int32_t>(key)));
    for (int64_t i = 0; i < kSubtile; ++i) {
      const uint32x4_t visible =
          vandq_u32(vcgeq_s32(keys, vdupq_n_s32(static_cast<int32_t>(seen[i].begin))),
                    vcltq_s32(keys, vdupq_n_s32(static_cast<int32_t>(seen[i].end))));
      float* at = scores + i / 2 * 2 * kSplitKeys + 2 * key + i % 2 * 4;
      vst1q_f32(at, vbslq_f32(visible, vld1q_f32(at), vdupq_n_f32(kNoScore)));
    }
  }
}

// Returns 1 in bfloat16. The compiler must not know that it is a constant: g++ 12 writes constants
// of this type as halves.
[[gnu::always_inline]] static inline bfloat16x8_t bf16_ones() {
  uint16x8_t v;
  asm("dup %0.8h, %w1" : "=w"(v) : "r"(0x3f80));
  return vreinterpretq_bf16_u16(v);
}

// Converts scores [from, to) (multiples of 8) of ten queries, [5 pairs][keys / 4][2][4], to
// operands of probabilities relative to the largest score so far. `weights` gets the factors of the
// older sums.
[[gnu::noinline]] static void softmax(const float* scores, int64_t from, int64_t to, bool first,
                                      float* maximum, float* sum, float* weights, uint16_t* p) {
  float32x4_t top[kSubtile];
#pragma GCC unroll 12
  for (int i = 0; i < kSubtile; ++i) top[i] = vdupq_n_f32(kNoScore);
  for (int64_t key = from; key < to; key += 4) {
#pragma GCC unroll 12
    for (int i = 0; i < kSubtile; ++i) {
      const float* at = scores + i / 2 * 2 * kSplitKeys + 2 * key + i % 2 * 4;
      top[i] = vmaxq_f32(top[i], vld1q_f32(at));
    }
  }
  float highest[kQuads * 4], base[kQuads * 4];
  for (int64_t i = kSubtile; i < kQuads * 4; ++i) highest[i] = 0;
#pragma GCC unroll 12
  for (int i = 0; i < kSubtile; ++i) highest[i] = vmaxvq_f32(top[i]);
  for (int64_t i = 0; i < kQuads * 4; i += 4) {
    const float32x4_t none = vdupq_n_f32(kNoScore);
    const float32x4_t old = first ? none : vld1q_f32(maximum + i);
    const float32x4_t now = vmaxq_f32(vld1q_f32(highest + i), old);
    vst1q_f32(highest + i, now);
    vst1q_f32(weights + i, exp2_f32(vsubq_f32(old, now)));
    // The probabilities of a query that has attended to nothing must become 0.
    vst1q_f32(base + i, vbslq_f32(vcgtq_f32(now, none), now, vdupq_n_f32(0)));
  }
  float wrong[kQuads * 4];  // NaN if a score was NaN or infinite
  for (int64_t i = 0; i < kSubtile; ++i) {
    maximum[i] = highest[i];
    wrong[i] = nan_unless_finite(highest[i]);
  }
  const bfloat16x8_t ones = bf16_ones();
  float32x4_t sums[kQueryPairs], bases[kSubtile];  // sums: two lanes of either query
#pragma GCC unroll 6
  for (int i = 0; i < kQueryPairs; ++i) sums[i] = vdupq_n_f32(0);
#pragma GCC unroll 12
  for (int i = 0; i < kSubtile; ++i) bases[i] = vdupq_n_f32(base[i]);
  p += from * kSubtile;
  for (int64_t key = from; key < to; key += 4, p += 4 * kSubtile) {
    uint16x8_t e[kQueryPairs];
    exp2_bf16(scores + 2 * key, bases, e);
    for_pairs([&](int i) __attribute__((always_inline)) {
      sums[i] = vbfdotq_f32(sums[i], vreinterpretq_bf16_u16(e[i]), ones);
      vst1q_u16(p + 8 * i, e[i]);
    });
  }
  for_pairs([&](int i) __attribute__((always_inline)) {
    const float32x2_t sums_of_pair = vpadd_f32(vget_low_f32(sums[i]), vget_high_f32(sums[i]));
    const float32x2_t added = vadd_f32(sums_of_pair, vld1_f32(wrong + 2 * i));
    float* at = sum + 2 * i;
    vst1_f32(at, first ? added : vfma_f32(added, vld1_f32(at), vld1_f32(weights + 2 * i)));
  });
}

// ---- Ten queries and a cut ----

[[gnu::always_inline]] static inline int32x4_t fresh_integer_zero() {
  return vreinterpretq_s32_f32(fresh_zero());
}

using IntegerSums = int32x4_t[kQueryPairs][kStripPairs];

// Adds x times y over `dim` columns to sum.
[[gnu::always_inline]] static inline void add_products(const int8_t* x, const int8_t* y,
                                                       int64_t dim, IntegerSums& sum) {
#pragma GCC unroll 1
  for (int64_t c = 0; c < dim; c += 8) {
    int8x16_t queries[kQueryPairs];
#pragma GCC unroll 6
    for (int p = 0; p < kQueryPairs; ++p) queries[p] = vld1q_s8(x + 16 * p);
#pragma GCC unroll 6
    for (int j = 0; j < kStripPairs; ++j) {
      const int8x16_t strip = vld1q_s8(y + 16 * j);
#pragma GCC unroll 6
      for (int p = 0; p < kQueryPairs; ++p) sum[p][j] = vmmlaq_s32(sum[p][j], queries[p], strip);
    }
    x += 16 * kQueryPairs;
    y += 16 * kStripPairs;
  }
}

// Computes the scores of keys [from, to) of the cut. Sums are below 2^31 up to a head of 256.
[[gnu::noinline]] static void score_keys(const int8_t* q, const float* query_scale,
                                         const int8_t* keys, const float* key_scale, int64_t from,
                                         int64_t to, int64_t dim, float* scores) {
  float32x4_t scale[kQueryPairs];
  for (int p = 0; p < kQueryPairs; ++p) {
    scale[p] = vcombine_f32(vdup_n_f32(query_scale[2 * p]), vdup_n_f32(query_scale[2 * p + 1]));
  }
  const int64_t q_part = kSubtile * dim, part = kStrip * dim;
  for (int64_t key = from; key < to; key += kStrip) {
    const int8_t* strip = keys + 2 * key * dim;
    IntegerSums sum;
#pragma GCC unroll 6
    for (int p = 0; p < kQueryPairs; ++p) {
#pragma GCC unroll 6
      for (int j = 0; j < kStripPairs; ++j) sum[p][j] = fresh_integer_zero();
    }
    add_products(q, strip, dim, sum);
#pragma GCC unroll 6
    for (int p = 0; p < kQueryPairs; ++p) {
#pragma GCC unroll 6
      for (int j = 0; j < kStripPairs; ++j) sum[p][j] = vshlq_n_s32(sum[p][j], 8);
    }
    add_products(q + q_part, strip, dim, sum);
    add_products(q, strip + part, dim, sum);
    // Each low part has a factor of 256: the products added last are in units of 256.
    const float unit = 256 * key_scale[key / kPageTokens];
#pragma GCC unroll 6
    for (int p = 0; p < kQueryPairs; ++p) {
      const float32x4_t factor = vmulq_n_f32(scale[p], unit);
      TileSums s;
#pragma GCC unroll 6
      for (int j = 0; j < kStripPairs; ++j) {
        s.sum[0][j] = vmulq_f32(vcvtq_f32_s32(sum[p][j]), factor);
      }
      float* at = scores + 2 * p * kSplitKeys + 2 * key;
#pragma GCC unroll 6
      for (int i = 0; i < 4; ++i) vst1q_f32(at + 4 * i, s.row(0, i % 2, i / 2));
    }
  }
}

// Adds the values of keys [from, to) to out [10, dim], which is not read if `first`.
[[gnu::noinline]] static void add_values(const uint16_t* p, const uint16_t* values, int64_t from,
                                         int64_t to, const float* weights, bool first, int64_t dim,
                                         float* out) {
  for (int64_t c = 0; c < dim; c += kStrip) {
    TileSums s;
    multiply(p + from * kSubtile, values + c * kSplitKeys + from * kStrip, (to - from) / 4, s);
#pragma GCC unroll 6
    for (int pair = 0; pair < kQueryPairs; ++pair) {
#pragma GCC unroll 6
      for (int i = 0; i < 4; ++i) {
        float* at = out + (2 * pair + i / 2) * dim + c + i % 2 * 4;
        float32x4_t v = s.row(pair, i / 2, i % 2);
        if (!first) v = vfmaq_n_f32(v, vld1q_f32(at), weights[2 * pair + i / 2]);
        vst1q_f32(at, v);
      }
    }
  }
}

// Attends queries [query, query + 10) of the tile to a cut; those past the last get the last one's
// mask.
static void attend_cut(const AttentionArgs& a, const AttentionTile& tile, const CutRange& range,
                       int64_t query, int64_t dim, const Scratch& s) {
  Seen seen[kSubtile];
  int64_t row = query / a.group, left = a.group - query % a.group;
  for (int64_t i = 0; i < kSubtile; ++i) {
    seen[i] = seen_by(a, range, tile.position + row);
    if (--left == 0 && row + 1 < tile.rows) {
      ++row;
      left = a.group;
    }
  }
  const int64_t from = seen[0].begin / kStrip * kStrip;
  const int64_t to = (seen[kSubtile - 1].end + kStrip - 1) / kStrip * kStrip;
  if (from >= to) return;
  const bool first = range.base <= first_seen(a, tile.position + query / a.group);
  score_keys(s.q + 2 * query * dim, s.query_scale + query, s.keys, s.key_scale, from, to, dim,
             s.scores);
  float weights[kQuads * 4];
  hide_keys(seen, from, to, s.scores);
  softmax(s.scores, from, to, first, s.maximum + query, s.sum + query, weights, s.p);
  add_values(s.p, s.values, from, to, weights, first, dim, s.out + query * dim);
}

static void attend_rows(const AttentionArgs& a, const AttentionTile& tile, float* scratch) {
  const int64_t dim = (a.head_dim + 7) / 8 * 8, queries = tile.rows * a.group;
  const Scratch s = cut_scratch(scratch, dim);
  pack_queries(a, tile, queries, dim, a.scale * 1.44269504F, s);  // powers of two are quicker
  const int64_t end = tile.position + tile.rows;
  for (int64_t split = first_seen(a, tile.position) / kSplitKeys; split * kSplitKeys < end;
       ++split) {
    const CutRange range = cut_range(a, tile, split);
    pack_cut(a, tile, range, dim, s);
    for (int64_t query = 0; query < queries; query += kSubtile) {
      attend_cut(a, tile, range, query, dim, s);
    }
  }
  const float* from = s.out;
  const float* sum = s.sum;
  for (int64_t row = 0; row < tile.rows; ++row) {
    float* to = a.out + (tile.first_row + row) * a.out_stride + tile.kv_head * a.group * a.head_dim;
    for (int64_t h = 0; h < a.group; ++h, from += dim, to += a.head_dim) {
      const float inverse = 1 / *sum++;
      int64_t c = 0;
      for (; c + 4 <= a.head_dim; c += 4) {
        vst1q_f32(to + c, vmulq_n_f32(vld1q_f32(from + c), inverse));
      }
      for (; c < a.head_dim; ++c) to[c] = from[c] * inverse;
    }
  }
}

}  // namespace

constinit const AttendRows kAttendRowsBfmmla = attend_rows;

}  // namespace spillway
