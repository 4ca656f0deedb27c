// SPDX-License-Identifier: Apache-2.0
// Attention of the many query heads of a KV head over int8 and int4 pages with 8-bit matrix
// multiplication. The file is compiled for it, so it contains nothing else.
//
// Like in attention_i8mm.cc, codes stay 8-bit operands, and queries and weights (probabilities
// times the scales of V) become 16-bit integers of two signed bytes. There the two rows of an
// operand are the high and low bytes of one query. Here they are two queries, and high and low
// bytes are separate operands: all four sums of an instruction are in the order that softmax and
// results need, and four queries (a quad) share each load.
//
// Weights have one unit for the whole cut, from the largest scale of V: no maximum is searched for,
// and sums stay integers until the cut's end. The largest weight has 15 bits.
#include "cpu/attention/attention_group_inl.h"
#include "cpu/attention/attention_kernels.h"
#include "cpu/fresh_zero_neon_inl.h"

namespace spillway {
namespace {

constexpr float kLargest16 = 32512;  // 127 * 256: high bytes stay in -127 to 127
constexpr int64_t kMaxGroups = 4;
constexpr int64_t kOperands = 4;  // high and low bytes of a quad's two pairs of queries
constexpr int64_t kOctetBytes = kOperands * 16;  // of 8 columns or tokens

struct Sizes {
  int64_t columns;        // bytes of a row, rounded up to 16
  int64_t group_columns;  // of a full group
  int64_t groups;
};

struct Quad : QuadQueries {
  float* scores;  // [256][4]
  float16_t* p;   // [4][256]
  int8_t* w;      // [groups][256 / 8][4 operands][2][8]
  int8_t* q;      // [kinds][columns / 8][4 operands][2][8]
  int32_t* sums;  // [bytes / 8 or bytes / 4][16][4]
  float q_scale[kMaxGroups][kQuad], q_sum[kMaxGroups][kQuad], scale[kQuad];
  float offset[kMaxGroups][kQuad];
};
struct Quads {
  Quad quad[kTilePlaces / kQuad];
  int64_t per_head, count;
};

static inline Quads make_quads(const AttentionArgs& a, const AttentionTile& tile, const Sizes& n,
                               int64_t kinds, float* memory) {
  Quads all;
  const int64_t queries_per_head = tile.rows * a.group;
  all.per_head = quads_of(queries_per_head);
  all.count = tile.heads * all.per_head;
  for (int64_t i = 0; i < all.count; ++i) {
    Quad& quad = all.quad[i];
    static_cast<QuadQueries&>(quad) = quad_queries(i, queries_per_head);
    quad.scores = memory;
    quad.sums = reinterpret_cast<int32_t*>(quad.scores + kQuad * kSplitKeys);
    quad.p = reinterpret_cast<float16_t*>(quad.sums + 2 * kQuad * a.padded_dim);
    quad.w = reinterpret_cast<int8_t*>(quad.p + kQuad * kSplitKeys);
    quad.q = quad.w + n.groups * kSplitKeys * 2 * kQuad;
    memory = reinterpret_cast<float*>(quad.q + kinds * n.columns * 2 * kQuad);
  }
  return all;
}

static inline int64_t group_size(const KvPageLayout& layout, int64_t group) {
  return smaller(layout.head_dim - group * kKvGroup, kKvGroup);
}

// Converts 8 values to bytes: `out` is where those of query j (0 or 1) go in the operand of high
// bytes.
[[gnu::always_inline]] static inline void put_bytes(int16x8_t value, int8_t* out) {
  vst1_s8(out, vrshrn_n_s16(value, 8));
  // The rest, modulo 256, is -128 to 127.
  vst1_s8(out + 16, vmovn_s16(value));
}

// Converts elements [at, at + 8) of x [size] times `factor`, with 0 from `size` on; sizes are
// multiples of 4.
static inline void put_elements(const float* x, int64_t at, int64_t size, float factor,
                                int8_t* out) {
  const int32x4_t zero = vdupq_n_s32(0);
  const int32x4_t low = at < size ? vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + at), factor)) : zero;
  const int32x4_t high =
      at + 4 < size ? vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + at + 4), factor)) : zero;
  put_bytes(vmovn_high_s32(vmovn_s32(low), high), out);
}

// Converts the quad's queries to operands, for int4 those of the low elements of all columns before
// those of the high, and sets the scale of each group and, for int4, its sum. Missing queries are
// zero.
template <bool kInt4>
static inline void round_queries(const AttentionArgs& a, const AttentionTile& tile, const Sizes& n,
                                 Quad& quad) {
  const KvPageLayout& layout = a.layout;
  const int64_t kind_bytes = n.columns * 2 * kQuad;
  memset(quad.q, 0, static_cast<size_t>((kInt4 ? 2 : 1) * kind_bytes));
  memset(quad.q_scale, 0, sizeof quad.q_scale);
  memset(quad.q_sum, 0, sizeof quad.q_sum);
  for (int64_t j = 0; j < kQuad; ++j) quad.scale[j] = a.scale * 1.44269504F;
  for (int64_t j = 0; j < quad.count; ++j) {
    const float* q = query_at(a, tile, quad.query + j);
    int8_t* to = quad.q + j / 2 * 32 + j % 2 * 8;
    for (int64_t g = 0; g < n.groups; ++g) {
      const int64_t size = group_size(layout, g), half = size / 2;
      const float* x = q + g * kKvGroup;
      float32x4_t top = vdupq_n_f32(0), sum = top;
      for (int64_t i = 0; i < size; i += 4) {
        top = vmaxq_f32(top, vabsq_f32(vld1q_f32(x + i)));
        sum = vaddq_f32(sum, vld1q_f32(x + i));
      }
      const float largest = vmaxvq_f32(top);
      const float inverse = largest > 0 ? kLargest16 / largest : 0;
      quad.q_scale[g][j] = largest / kLargest16;
      quad.q_sum[g][j] = vaddvq_f32(sum);
      const int64_t first = g * n.group_columns, end = smaller(first + n.group_columns, n.columns);
      for (int64_t c = first; c < end; c += 8) {
        put_elements(x, c - first, kInt4 ? half : size, inverse, to + c / 8 * kOctetBytes);
        if (kInt4) {
          put_elements(x + half, c - first, half, inverse, to + kind_bytes + c / 8 * kOctetBytes);
        }
      }
    }
  }
}

// Adds products in assembly, because the compiler would move sums between registers.
[[gnu::always_inline]] static inline void add_product(int32x4_t& sum, uint8x16_t x, int8x16_t y) {
  asm("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(x), "w"(y));
}
[[gnu::always_inline]] static inline void add_unsigned(int32x4_t& sum, uint8x16_t x, int8x16_t y) {
  asm("usmmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(x), "w"(y));
}

// Returns 256 * high + low.
[[gnu::always_inline]] static inline float32x4_t join(int32x4_t high, int32x4_t low) {
  return vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 8), low));
}

// Adds columns [first, end), which are one group, to the scores [8][4] of a quad for 8 rows: scores
// += dot * q_scale * scale + q_sum * min.
template <bool kInt4>
[[gnu::noinline]] static void score_octet(const uint8_t* rows, int64_t stride, const int8_t* q,
                                          int64_t first, int64_t end, int64_t columns,
                                          const float* q_scale, const float* q_sum,
                                          const uint8_t* scales, const uint8_t* mins, bool start,
                                          float* scores) {
  int32x4_t acc[4][kOperands];
  const uint8_t* k[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) k[r] = rows + r * stride;
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kOperands; ++i) acc[r][i] = fresh_zero();
  }
  const auto add = [&](const uint8x16_t* codes, const int8_t* at) __attribute__((always_inline)) {
    int8x16_t x[kOperands];
#pragma GCC unroll 4
    for (int i = 0; i < kOperands; ++i) x[i] = vld1q_s8(at + 16 * i);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kOperands; ++i) add_product(acc[r][i], codes[r], x[i]);
    }
  };
#pragma GCC unroll 1
  for (int64_t c = first; c < end; c += 16) {
    uint64x2_t even[4], odd[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      even[r] = vreinterpretq_u64_u8(vld1q_u8(k[2 * r] + c));
      odd[r] = vreinterpretq_u64_u8(vld1q_u8(k[2 * r + 1] + c));
    }
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
      const int8_t* at = q + (c + 8 * n) / 8 * kOctetBytes;
      uint8x16_t codes[4], part[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        codes[r] = vreinterpretq_u8_u64(n == 0 ? vzip1q_u64(even[r], odd[r])
                                               : vzip2q_u64(even[r], odd[r]));
      }
      if constexpr (!kInt4) {
        add(codes, at);
        continue;
      }
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) part[r] = vandq_u8(codes[r], vdupq_n_u8(15));
      add(part, at);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) part[r] = vshrq_n_u8(codes[r], 4);
      add(part, at + columns * 2 * kQuad);
    }
  }
  const float16x8_t key_scales = vld1q_f16(reinterpret_cast<const float16_t*>(scales));
  const float32x4_t scale[2] = {vcvt_f32_f16(vget_low_f16(key_scales)),
                                vcvt_high_f32_f16(key_scales)};
  float32x4_t min[2] = {};
  if (kInt4) {
    const float16x8_t key_mins = vld1q_f16(reinterpret_cast<const float16_t*>(mins));
    min[0] = vcvt_f32_f16(vget_low_f16(key_mins));
    min[1] = vcvt_high_f32_f16(key_mins);
  }
  const float32x4_t query_scale = vld1q_f32(q_scale), query_sum = vld1q_f32(q_sum);
  const auto put = [&]<int kKey>(float32x4_t dots) __attribute__((always_inline)) {
    float* to = scores + kKey * kQuad;
    float32x4_t s = vmulq_laneq_f32(vmulq_f32(dots, query_scale), scale[kKey / 4], kKey % 4);
    if (!start) s = vaddq_f32(s, vld1q_f32(to));
    if (kInt4) s = vfmaq_laneq_f32(s, query_sum, min[kKey / 4], kKey % 4);
    vst1q_f32(to, s);
  };
  const auto put_rows = [&]<int r>() __attribute__((always_inline)) {
    const float64x2_t x = vreinterpretq_f64_f32(join(acc[r][0], acc[r][1]));
    const float64x2_t y = vreinterpretq_f64_f32(join(acc[r][2], acc[r][3]));
    put.template operator()<2 * r>(vreinterpretq_f32_f64(vzip1q_f64(x, y)));
    put.template operator()<2 * r + 1>(vreinterpretq_f32_f64(vzip2q_f64(x, y)));
  };
  put_rows.template operator()<0>();
  put_rows.template operator()<1>();
  put_rows.template operator()<2>();
  put_rows.template operator()<3>();
}

// Loads the scales (or minima) of V of a KV head's keys of the cut, [groups][256], with 0 for keys
// that no query attends to, which may never have been stored.
static inline void load_value_scales(const AttentionArgs& a, const AttentionTile& tile,
                                     const CutRange& range, const CutPages& pages, int64_t head,
                                     int64_t offset, float16_t* out) {
  for (int64_t page = pages.first; page < pages.end; ++page) {
    const uint8_t* from = page_at(a, tile, pages, a.v, page, head) + offset;
    const int64_t first = page * kPageTokens;
    for (int64_t g = 0; g < a.layout.groups; ++g, from += 2 * kPageTokens) {
      float16_t* to = out + g * kSplitKeys + first;
      memcpy(to, from, 2 * kPageTokens);
      for (int64_t t = 0; t < kPageTokens; ++t) {
        if (first + t < range.first || first + t >= range.end) to[t] = 0;
      }
    }
  }
}

// Makes scales [from, to) relative to the largest, times the factor that makes 64 the largest
// weight; returns the largest.
static inline float relative_scales(float16_t* scales, int64_t from, int64_t to) {
  float16x8_t top = vdupq_n_f16(0);
  for (int64_t i = from; i < to; i += 8) top = vmaxq_f16(top, vld1q_f16(scales + i));
  const auto largest = static_cast<float>(vmaxvq_f16(top));
  constexpr float kUnit = kLargest16 / (1 << kProbabilityBits);
  const float inverse = largest > 0 ? kUnit / largest : 0;
  for (int64_t i = from; i < to; i += 8) {
    const float16x8_t x = vld1q_f16(scales + i);
    const float32x4_t low = vmulq_n_f32(vcvt_f32_f16(vget_low_f16(x)), inverse);
    const float32x4_t high = vmulq_n_f32(vcvt_high_f32_f16(x), inverse);
    vst1q_f16(scales + i, vcvt_high_f16_f32(vcvt_f16_f32(low), high));
  }
  return largest;
}

// Converts probabilities times scales to operands; for int4 adds up probabilities times minima.
template <bool kInt4>
static inline void weigh(const Quad& quad, int64_t from, int64_t to, const float16_t* scales,
                         const float16_t* mins, int8_t* w, float* offset) {
  for (int64_t j = 0; j < kQuad; ++j) {
    const float16_t* p = quad.p + j * kSplitKeys;
    int8_t* out = w + j / 2 * 32 + j % 2 * 8;
    float32x4_t even = vdupq_n_f32(0), odd = even;
#pragma GCC unroll 4
    for (int64_t i = from; i < to; i += 8) {
      const float16x8_t x = vld1q_f16(p + i);
      put_bytes(vcvtnq_s16_f16(vmulq_f16(x, vld1q_f16(scales + i))), out + i / 8 * kOctetBytes);
      if (kInt4) {
        even = vfmlalq_low_f16(even, x, vld1q_f16(mins + i));
        odd = vfmlalq_high_f16(odd, x, vld1q_f16(mins + i));
      }
    }
    offset[j] = vaddvq_f32(vaddq_f32(even, odd)) / (1 << kProbabilityBits);
  }
}

// Adds pages to the sums of a quad for 8 columns of int8 or 4 bytes of int4. For int4, whole bytes
// and high halves are summed; the low halves are the difference.
template <bool kInt4>
[[gnu::noinline]] static void add_strip(const uint8_t* const* pages, int64_t count, int64_t at,
                                        const int8_t* w, bool first, int32_t* sums) {
  constexpr int kPairs = kInt4 ? 2 : 4;  // of columns
  int32x4_t acc[4][kOperands];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
#pragma GCC unroll 4
    for (int i = 0; i < kOperands; ++i) {
      acc[k][i] = first ? fresh_zero() : vld1q_s32(sums + (k * kOperands + i) * 4);
    }
  }
#pragma GCC unroll 1
  for (int64_t page = 0; page < count; ++page) {
    const uint8_t* from = pages[page] + at;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, w += kOctetBytes) {
      int8x16_t weight[kOperands];
      uint8x16_t x[4];
#pragma GCC unroll 4
      for (int i = 0; i < kOperands; ++i) weight[i] = vld1q_s8(w + 16 * i);
#pragma GCC unroll 4
      for (int k = 0; k < kPairs; ++k) x[k] = vld1q_u8(from + (2 * k + half) * 16);
      if constexpr (kInt4) {
#pragma GCC unroll 2
        for (int k = 0; k < kPairs; ++k) x[kPairs + k] = vandq_u8(x[k], vdupq_n_u8(0xf0));
      }
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
#pragma GCC unroll 4
        for (int i = 0; i < kOperands; ++i) {
          if constexpr (kInt4) {
            add_unsigned(acc[k][i], x[k], weight[i]);
          } else {
            add_product(acc[k][i], x[k], weight[i]);
          }
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
#pragma GCC unroll 4
    for (int i = 0; i < kOperands; ++i) vst1q_s32(sums + (k * kOperands + i) * 4, acc[k][i]);
  }
}

// Writes four columns of both queries `pair` of a quad to rows of the result: unit * sum + offset.
[[gnu::always_inline]] static inline void store_columns(float32x4_t x, float32x4_t y, float unit,
                                                        const float* offset, int64_t count,
                                                        float* out, int64_t out_stride) {
  vst1q_f32(out, vfmaq_n_f32(vdupq_n_f32(offset[0]), vuzp1q_f32(x, y), unit));
  if (count < 2) return;
  vst1q_f32(out + out_stride, vfmaq_n_f32(vdupq_n_f32(offset[1]), vuzp2q_f32(x, y), unit));
}

// Writes the sums of one strip at column `c` of a group with `size` elements; `out` is the group's.
template <bool kInt4>
static inline void store_strip(const Quad& quad, const int32_t* sums, float unit,
                               const float* offset, int64_t c, int64_t size, float* out,
                               int64_t out_stride) {
  const auto sum = [&](int64_t k, int64_t i) { return vld1q_s32(sums + (k * kOperands + i) * 4); };
  for (int64_t pair = 0; 2 * pair < quad.count; ++pair) {
    const int64_t high = 2 * pair, low = high + 1, left = quad.count - 2 * pair;
    float* to = out + 2 * pair * out_stride + c;
    const float* add = offset + 2 * pair;
    if constexpr (kInt4) {
      float32x4_t lower[2], upper[2];
      for (int64_t k = 0; k < 2; ++k) {
        upper[k] = join(sum(2 + k, high), sum(2 + k, low));
        lower[k] = join(vsubq_s32(sum(k, high), sum(2 + k, high)),
                        vsubq_s32(sum(k, low), sum(2 + k, low)));
      }
      store_columns(lower[0], lower[1], unit, add, left, to, out_stride);
      store_columns(upper[0], upper[1], unit / 16, add, left, to + size / 2, out_stride);
    } else {
      for (int64_t k = 0; k < 4; k += 2) {
        store_columns(join(sum(k, high), sum(k, low)), join(sum(k + 1, high), sum(k + 1, low)),
                      unit, add, left, to + 2 * k, out_stride);
      }
    }
  }
}

// Computes the weights of all quads of a KV head; units: [groups].
template <bool kInt4>
static void weigh_head(const AttentionArgs& a, const AttentionTile& tile, const CutRange& range,
                       const CutPages& pages, int64_t head, Quad* quads, int64_t count,
                       float16_t* scales, float* units) {
  const int64_t groups = a.layout.groups;
  const int64_t from = pages.first * kPageTokens, to = pages.end * kPageTokens;
  float16_t* mins = scales + groups * kSplitKeys;
  load_value_scales(a, tile, range, pages, head, 0, scales);
  if (kInt4) load_value_scales(a, tile, range, pages, head, a.layout.mins_at, mins);
  for (int64_t g = 0; g < groups; ++g) {
    units[g] = relative_scales(scales + g * kSplitKeys, from, to) / kLargest16;
    for (int64_t i = 0; i < count; ++i) {
      weigh<kInt4>(quads[i], from, to, scales + g * kSplitKeys, mins + g * kSplitKeys,
                   quads[i].w + g * kSplitKeys * 2 * kQuad, quads[i].offset[g]);
    }
  }
}

// Returns false if a score is not finite.
template <bool kInt4>
static bool try_attend(const AttentionArgs& a, const AttentionTile& tile, const CutRange& range,
                       const AttentionPartial& result, float* scratch) {
  const KvPageLayout& layout = a.layout;
  const Sizes n{(layout.row_bytes + 15) / 16 * 16, kInt4 ? kKvGroup / 2 : kKvGroup, layout.groups};
  auto* scales = reinterpret_cast<float16_t*>(scratch);                          // [2][groups][256]
  float* units = scratch + n.groups * kSplitKeys;                                // [heads][groups]
  auto* padded = reinterpret_cast<uint8_t*>(units + kTileQueries * kMaxGroups);  // [16, columns]
  Quads quads = make_quads(a, tile, n, kInt4 ? 2 : 1,
                           reinterpret_cast<float*>(padded + kPageTokens * n.columns));
  for (int64_t i = 0; i < quads.count; ++i) round_queries<kInt4>(a, tile, n, quads.quad[i]);
  const CutPages pages = cut_pages(tile, range);
  for (int64_t page = pages.first; page < pages.end; ++page) {
    for (int64_t h = 0; h < tile.heads; ++h) {
      const uint8_t* at = page_at(a, tile, pages, a.k, page, h);
      const PageRows rows = page_rows(a, at, n.columns, 0, kPageTokens, padded);
      for (int64_t token = 0; token < kPageTokens; token += kOctet) {
        for (int64_t i = h * quads.per_head; i < (h + 1) * quads.per_head; ++i) {
          const Quad& quad = quads.quad[i];
          for (int64_t g = 0; g < n.groups; ++g) {
            const int64_t first = g * n.group_columns, scale_at = 2 * (g * kPageTokens + token);
            score_octet<kInt4>(rows.at + token * rows.stride, rows.stride, quad.q, first,
                               smaller(first + n.group_columns, n.columns), n.columns,
                               quad.q_scale[g], quad.q_sum[g], at + scale_at,
                               at + layout.mins_at + scale_at, g == 0,
                               quad.scores + (page * kPageTokens + token) * kQuad);
          }
        }
      }
    }
  }
  for (int64_t i = 0; i < quads.count; ++i) {
    const Quad& quad = quads.quad[i];
    const auto put = [&](int64_t key, const float16x8_t* p) __attribute__((always_inline)) {
      const float16x8_t a02 = vuzp1q_f16(p[0], p[1]), a13 = vuzp2q_f16(p[0], p[1]);
      const float16x8_t b02 = vuzp1q_f16(p[2], p[3]), b13 = vuzp2q_f16(p[2], p[3]);
      vst1q_f16(quad.p + key, vuzp1q_f16(a02, b02));
      vst1q_f16(quad.p + kSplitKeys + key, vuzp1q_f16(a13, b13));
      vst1q_f16(quad.p + 2 * kSplitKeys + key, vuzp2q_f16(a02, b02));
      vst1q_f16(quad.p + 3 * kSplitKeys + key, vuzp2q_f16(a13, b13));
    };
    if (!softmax(a, tile, range, quad, quad.scale, quad.scores, result, put)) return false;
  }
  for (int64_t h = 0; h < tile.heads; ++h) {
    weigh_head<kInt4>(a, tile, range, pages, h, quads.quad + h * quads.per_head, quads.per_head,
                      scales, units + h * n.groups);
  }
  constexpr int64_t kStripBytes = kInt4 ? 4 : 8;
  for (int64_t first = pages.first; first < pages.end; first += kBlockPages) {
    const int64_t count = smaller(kBlockPages, pages.end - first);
    for (int64_t h = 0; h < tile.heads; ++h) {
      const uint8_t* at[kBlockPages];
      for (int64_t i = 0; i < count; ++i) at[i] = page_at(a, tile, pages, a.v, first + i, h);
      for (int64_t i = h * quads.per_head; i < (h + 1) * quads.per_head; ++i) {
        const Quad& quad = quads.quad[i];
        for (int64_t byte = 0; byte < layout.row_bytes; byte += kStripBytes) {
          const int64_t g = byte / n.group_columns;
          add_strip<kInt4>(at, count, layout.codes_at + byte * kPageTokens,
                           quad.w + (g * kSplitKeys + first * kPageTokens) * 2 * kQuad,
                           first == pages.first, quad.sums + byte / kStripBytes * 64);
        }
      }
    }
  }
  for (int64_t i = 0; i < quads.count; ++i) {
    const Quad& quad = quads.quad[i];
    for (int64_t byte = 0; byte < layout.row_bytes; byte += kStripBytes) {
      const int64_t g = byte / n.group_columns;
      store_strip<kInt4>(quad, quad.sums + byte / kStripBytes * 64,
                         units[i / quads.per_head * n.groups + g], quad.offset[g],
                         byte - g * n.group_columns, group_size(layout, g),
                         result.out + quad.query * a.padded_dim + g * kKvGroup, a.padded_dim);
    }
  }
  return true;
}

template <bool kInt4>
static void attend_group(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                         const AttentionPartial& result, float* scratch) {
  const int64_t per_head = tile.rows * a.group, queries = tile.heads * per_head;
  const CutRange range = cut_range(a, tile, split);
  if (per_head >= kFewestQueries && range.first < range.end) {
    memset(result.out, 0, static_cast<size_t>(queries * a.padded_dim) * sizeof(float));
    if (try_attend<kInt4>(a, tile, range, result, scratch)) return;
  }
  (kInt4 ? kAttendInt4I8mm : kAttendInt8I8mm)(a, tile, split, result, scratch);
}

}  // namespace

constinit const AttendSplit kAttendGroupInt8I8mm = attend_group<false>;
constinit const AttendSplit kAttendGroupInt4I8mm = attend_group<true>;

}  // namespace spillway
