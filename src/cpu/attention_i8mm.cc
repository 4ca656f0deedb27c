// SPDX-License-Identifier: Apache-2.0
// Attention over int8 and int4 pages with 8-bit matrix multiplication; compiled for it, so nothing
// else here.
//
// Codes stay 8-bit operands. Queries, and probabilities times the scales of V, become 16-bit
// integers of two signed bytes, high and low: the matrix instruction multiplies two rows of codes
// with two rows of 8 bytes, which are these two. Sums are exact integers. An int4 row is handled as
// columns of bytes: two elements share a column.
#include "cpu/attention_arm_inl.h"
#include "cpu/attention_kernels.h"

namespace spillway {
namespace {

constexpr float kLargest16 = 32512;  // 127 * 256: high bytes stay in -127 to 127

struct Sizes {
  int64_t columns;        // bytes of a row, rounded up to 16
  int64_t group_columns;  // of a full group
  int64_t groups;
};

// The scratch memory, cut up. Sizes are counted in split_scratch_floats().
struct Scratch {
  float* scores;        // [queries, 256], later probabilities
  float* scales;        // [groups, 64]
  float* mins;          // [groups, 64]
  int8_t* q;            // [queries, kinds, columns / 8, 2, 8]
  int8_t* p;            // [queries, groups, 8 octets, 2, 8]
  uint8_t* transposed;  // [columns, 64]
  uint8_t* padded;      // [64, columns]
};
static inline Scratch cut_scratch(float* memory, const Sizes& n, int64_t padded_dim) {
  Scratch s;
  s.scores = memory;
  s.scales = s.scores + kTileQueries * kSplitKeys;
  s.mins = s.scales + n.groups * kBlockKeys;
  s.q = reinterpret_cast<int8_t*>(s.mins + n.groups * kBlockKeys);
  s.p = s.q + kTileQueries * 2 * (padded_dim + 16);
  s.transposed = reinterpret_cast<uint8_t*>(s.p + kTileQueries * n.groups * 2 * kBlockKeys);
  s.padded = s.transposed + kBlockKeys * (padded_dim + 16);
  return s;
}

// Of the magnitudes of n values, a multiple of 4.
static inline float largest_of(const float* x, int64_t n) {
  float32x4_t top = vdupq_n_f32(0);
  for (int64_t i = 0; i < n; i += 4) top = vmaxq_f32(top, vabsq_f32(vld1q_f32(x + i)));
  return vmaxvq_f32(top);
}

// 8 values as 16-bit integers: high bytes, then low bytes.
[[gnu::always_inline]] static inline void put_pair(float32x4_t x0, float32x4_t x1, int8_t* out) {
  const int16x8_t value =
      vcombine_s16(vmovn_s32(vcvtnq_s32_f32(x0)), vmovn_s32(vcvtnq_s32_f32(x1)));
  const int8x8_t high = vrshrn_n_s16(value, 8);
  // What is left, modulo 256: -128 to 127.
  const int8x8_t low = vmovn_s16(value);
  vst1q_s8(out, vcombine_s8(high, low));
}

// Elements [at, at + 8) of x [size] times `factor`, 0 from `size` on; sizes are multiples of 4.
static inline void put_elements(const float* x, int64_t at, int64_t size, float factor,
                                int8_t* out) {
  const float32x4_t zero = vdupq_n_f32(0);
  put_pair(at < size ? vmulq_n_f32(vld1q_f32(x + at), factor) : zero,
           at + 4 < size ? vmulq_n_f32(vld1q_f32(x + at + 4), factor) : zero, out);
}

// The query's operands, for int4 those of the low elements of all columns before those of the high;
// the scale of each group, and for int4 its sum.
template <bool kInt4>
static inline void round_query(const float* q, const KvPageLayout& layout, const Sizes& n,
                               int8_t* out, float* scales, float* sums) {
  for (int64_t g = 0; g < n.groups; ++g) {
    const int64_t size = smaller(layout.head_dim - g * kKvGroup, kKvGroup);
    const float* x = q + g * kKvGroup;
    const float largest = largest_of(x, size);
    scales[g] = largest / kLargest16;
    const float inverse = largest > 0 ? kLargest16 / largest : 0;
    if (kInt4) {
      float32x4_t sum = vdupq_n_f32(0);
      for (int64_t i = 0; i < size; i += 4) sum = vaddq_f32(sum, vld1q_f32(x + i));
      sums[g] = vaddvq_f32(sum);
    }
    const int64_t first = g * n.group_columns, end = smaller(first + n.group_columns, n.columns);
    const int64_t half = size / 2;
    for (int64_t c = first; c < end; c += 8) {
      put_elements(x, c - first, kInt4 ? half : size, inverse, out + 2 * c);
      if (kInt4) put_elements(x + half, c - first, half, inverse, out + 2 * (n.columns + c));
    }
  }
}

// Scales (or mins) of a block's 64 keys in the order of positions.
static inline void load_scales(const BlockPages& pages, int64_t offset, float* out) {
  float32x4_t x[kBlockPages][4];
  for (int64_t i = 0; i < kBlockPages; ++i) {
    const auto* halves = reinterpret_cast<const __fp16*>(pages.page[i] + offset);
    for (int64_t j = 0; j < 4; ++j) x[i][j] = vcvt_f32_f16(vld1_f16(halves + 4 * j));
  }
  for (int64_t j = 0; j < 4; ++j) {
    float* at = out + 16 * j;
    vst1q_f32(at, vcombine_f32(vget_low_f32(x[0][j]), vget_low_f32(x[1][j])));
    vst1q_f32(at + 4, vcombine_f32(vget_low_f32(x[2][j]), vget_low_f32(x[3][j])));
    vst1q_f32(at + 8, vcombine_f32(vget_high_f32(x[0][j]), vget_high_f32(x[1][j])));
    vst1q_f32(at + 12, vcombine_f32(vget_high_f32(x[2][j]), vget_high_f32(x[3][j])));
  }
}

// {high, low} pairs of four sums: 256 * high + low.
[[gnu::always_inline]] static inline float32x4_t join(int32x4_t a, int32x4_t b) {
  const int32x4_t high = vuzp1q_s32(a, b), low = vuzp2q_s32(a, b);
  return vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 8), low));
}

[[gnu::always_inline]] static inline int8x16_t rows_low(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
[[gnu::always_inline]] static inline int8x16_t rows_high(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

// Adds columns [first, end), which are one group, to the scores of Q queries for P pairs of rows
// (4 a whole octet): scores += (dot * query_scale) * scales + query_sum * mins.
template <bool kInt4, int Q>
static inline void score_octet(const BlockRows& rows, int64_t octet, const int8_t* q,
                               int64_t q_stride, int64_t first, int64_t end, int64_t columns,
                               const float* query_scale, const float* query_sum, int64_t groups,
                               const float* scales, const float* mins, bool start, float* scores) {
  int32x4_t acc[Q][4];
  const int8_t* k[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) k[r] = reinterpret_cast<const int8_t*>(row_at(rows, octet, r));
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) acc[i][r] = vdupq_n_s32(0);
  }
  for (int64_t c = first; c < end; c += 16) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const int8x16_t even = vld1q_s8(k[2 * r] + c), odd = vld1q_s8(k[2 * r + 1] + c);
      const int8x16_t x0 = rows_low(even, odd), x1 = rows_high(even, odd);
      if constexpr (kInt4) {
        const uint8x16_t u0 = vreinterpretq_u8_s8(x0), u1 = vreinterpretq_u8_s8(x1);
        const int8x16_t low0 = vreinterpretq_s8_u8(vandq_u8(u0, vdupq_n_u8(15)));
        const int8x16_t low1 = vreinterpretq_s8_u8(vandq_u8(u1, vdupq_n_u8(15)));
        const int8x16_t high0 = vreinterpretq_s8_u8(vshrq_n_u8(u0, 4));
        const int8x16_t high1 = vreinterpretq_s8_u8(vshrq_n_u8(u1, 4));
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) {
          const int8_t* low_q = q + i * q_stride + 2 * c;
          const int8_t* high_q = low_q + 2 * columns;
          acc[i][r] = vmmlaq_s32(acc[i][r], low0, vld1q_s8(low_q));
          acc[i][r] = vmmlaq_s32(acc[i][r], low1, vld1q_s8(low_q + 16));
          acc[i][r] = vmmlaq_s32(acc[i][r], high0, vld1q_s8(high_q));
          acc[i][r] = vmmlaq_s32(acc[i][r], high1, vld1q_s8(high_q + 16));
        }
      } else {
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) {
          const int8_t* at = q + i * q_stride + 2 * c;
          acc[i][r] = vmmlaq_s32(acc[i][r], x0, vld1q_s8(at));
          acc[i][r] = vmmlaq_s32(acc[i][r], x1, vld1q_s8(at + 16));
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
    float* out = scores + i * kSplitKeys;
#pragma GCC unroll 2
    for (int r = 0; r < 2; ++r) {
      const float32x4_t dots = join(acc[i][2 * r], acc[i][2 * r + 1]);
      float32x4_t s =
          vmulq_n_f32(vmulq_f32(dots, vld1q_f32(scales + 4 * r)), query_scale[i * groups]);
      if (!start) s = vaddq_f32(s, vld1q_f32(out + 4 * r));
      if (kInt4) s = vfmaq_n_f32(s, vld1q_f32(mins + 4 * r), query_sum[i * groups]);
      vst1q_f32(out + 4 * r, s);
    }
  }
}

// 8 rows of 16 columns to 16 rows of 8: pairs of columns, 64 * 2 bytes apart (a pair's octets lie
// together).
[[gnu::always_inline]] static inline void transpose_octet(const BlockRows& rows, int64_t octet,
                                                          int64_t c, uint8_t* out) {
  uint8x16_t r[8], s[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = vld1q_u8(row_at(rows, octet, i) + c);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    s[i] = vzip1q_u8(r[i], r[i + 4]);      // columns 0 to 7
    s[i + 4] = vzip2q_u8(r[i], r[i + 4]);  // columns 8 to 15
  }
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      t[4 * h + i] = vzip1q_u8(s[4 * h + i], s[4 * h + i + 2]);
      t[4 * h + i + 2] = vzip2q_u8(s[4 * h + i], s[4 * h + i + 2]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t a = t[2 * i], b = t[2 * i + 1];
    vst1q_u8(out + (2 * i) * 2 * kBlockKeys, vzip1q_u8(a, b));
    vst1q_u8(out + (2 * i + 1) * 2 * kBlockKeys, vzip2q_u8(a, b));
  }
}

// Adds 64 rows to the outputs of Q queries in P pairs of columns from `c` on, of one group. For
// int4 the bytes as they are and their high halves are summed; the low halves are the difference.
template <bool kInt4, int Q, int P>
static inline void add_pairs(const uint8_t* transposed, const int8_t* p, int64_t p_stride,
                             const float* units, int64_t groups, int64_t c, int64_t size,
                             float* out, int64_t out_stride) {
  constexpr int kKinds = kInt4 ? 2 : 1;
  int32x4_t acc[Q][P][kKinds];
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 8
    for (int k = 0; k < P; ++k) {
      acc[i][k][0] = vdupq_n_s32(0);
      if constexpr (kInt4) acc[i][k][1] = vdupq_n_s32(0);
    }
  }
#pragma GCC unroll 2
  for (int64_t octet = 0; octet < kOctets; ++octet) {
    int8x16_t weight[Q];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) weight[i] = vld1q_s8(p + i * p_stride + 16 * octet);
#pragma GCC unroll 8
    for (int k = 0; k < P; ++k) {
      const uint8x16_t x = vld1q_u8(transposed + k * 2 * kBlockKeys + 16 * octet);
      if constexpr (kInt4) {
        const uint8x16_t high = vandq_u8(x, vdupq_n_u8(0xf0));
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) {
          acc[i][k][0] = vusmmlaq_s32(acc[i][k][0], x, weight[i]);
          acc[i][k][1] = vusmmlaq_s32(acc[i][k][1], high, weight[i]);
        }
      } else {
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i) {
          acc[i][k][0] = vmmlaq_s32(acc[i][k][0], vreinterpretq_s8_u8(x), weight[i]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
    const float unit = units[i * groups];
#pragma GCC unroll 4
    for (int k = 0; k < P; k += 2) {
      const int64_t column = c + 2 * k;
      if (column >= (kInt4 ? size / 2 : size)) break;  // what pads a row
      float* to = out + i * out_stride + column;
      if constexpr (kInt4) {
        const int32x4_t high_a = acc[i][k][1], high_b = acc[i][k + 1][1];
        const float32x4_t low =
            join(vsubq_s32(acc[i][k][0], high_a), vsubq_s32(acc[i][k + 1][0], high_b));
        vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), low, unit));
        to += size / 2;
        vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), join(high_a, high_b), unit / 16));
      } else {
        const float32x4_t sum = join(acc[i][k][0], acc[i][k + 1][0]);
        vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), sum, unit));
      }
    }
  }
}

static inline int64_t group_size(const KvPageLayout& layout, int64_t group) {
  return smaller(layout.head_dim - group * kKvGroup, kKvGroup);
}

// All columns of one block for Q queries. out: of the first of them.
template <bool kInt4, int Q>
static inline void add_block(const AttentionArgs& a, const Scratch& s, const Sizes& n,
                             const int8_t* p, const float* units, float* out) {
  constexpr int kPairs = kInt4 ? (Q >= 4 ? 2 : 4) : (Q >= 4 ? 4 : 8);
  for (int64_t g = 0; g < n.groups; ++g) {
    const int64_t first = g * n.group_columns, end = smaller(first + n.group_columns, n.columns);
    for (int64_t c = first; c < end; c += 2 * kPairs) {
      add_pairs<kInt4, Q, kPairs>(s.transposed + c * kBlockKeys, p + g * 2 * kBlockKeys,
                                  n.groups * 2 * kBlockKeys, units + g, n.groups, c - first,
                                  group_size(a.layout, g), out + g * kKvGroup, a.padded_dim);
    }
  }
}

// 64 probabilities of one query times the scales of V, as 16-bit integers, and their unit; for int4
// adds up probabilities times mins. Scales of keys that were never stored may be NaN; their
// probability is 0.
template <bool kInt4>
static inline void weigh(const float* p, const float* scales, const float* mins, int8_t* out,
                         float* unit, float* offset) {
  const float32x4_t zero = vdupq_n_f32(0);
  float32x4_t top = zero, sum = zero, weights[kBlockKeys / 4];
#pragma GCC unroll 16
  for (int64_t j = 0; j < kBlockKeys / 4; ++j) {
    const float32x4_t x = vld1q_f32(p + 4 * j);
    const uint32x4_t none = vceqq_f32(x, zero);
    weights[j] = vbslq_f32(none, zero, vmulq_f32(x, vld1q_f32(scales + 4 * j)));
    top = vmaxq_f32(top, weights[j]);
    if (kInt4) sum = vaddq_f32(sum, vbslq_f32(none, zero, vmulq_f32(x, vld1q_f32(mins + 4 * j))));
  }
  const float largest = vmaxvq_f32(top);
  // Below this its inverse overflows, and it is nothing beside the largest probability's 1.
  const float inverse = largest > 1e-30F ? kLargest16 / largest : 0;
  *unit = largest * (1 / kLargest16);
  if (kInt4) *offset += vaddvq_f32(sum);
#pragma GCC unroll 8
  for (int64_t j = 0; j < kBlockKeys / 4; j += 2) {
    put_pair(vmulq_n_f32(weights[j], inverse), vmulq_n_f32(weights[j + 1], inverse), out + 8 * j);
  }
}

template <bool kInt4>
static inline void load_block_scales(const KvPageLayout& layout, const BlockPages& pages,
                                     const Scratch& s) {
  for (int64_t g = 0; g < layout.groups; ++g) {
    const int64_t at = 2 * g * kPageTokens;
    load_scales(pages, at, s.scales + g * kBlockKeys);
    if (kInt4) load_scales(pages, layout.mins_at + at, s.mins + g * kBlockKeys);
  }
}

template <bool kInt4>
static void attend_codes(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                         const AttentionPartial& result, float* scratch) {
  constexpr int64_t kKinds = kInt4 ? 2 : 1, kMaxGroups = 4;
  const KvPageLayout& layout = a.layout;
  const int64_t per_head = tile.rows * a.group, queries = tile.heads * per_head;
  const Sizes n{(layout.row_bytes + 15) / 16 * 16, kInt4 ? kKvGroup / 2 : kKvGroup, layout.groups};
  const Scratch s = cut_scratch(scratch, n, a.padded_dim);
  const CutRange range = cut_range(a, tile, split);
  memset(result.out, 0, static_cast<size_t>(queries * a.padded_dim) * sizeof(float));
  if (range.first >= range.end) {
    for (int64_t i = 0; i < queries; ++i) result.maximum[i] = kNoScore, result.sum[i] = 0;
    return;
  }
  float query_scale[kTileQueries * kMaxGroups], query_sum[kTileQueries * kMaxGroups];
  const int64_t q_stride = 2 * n.columns * kKinds;
  for (int64_t i = 0; i < queries; ++i) {
    round_query<kInt4>(query_at(a, tile, i), layout, n, s.q + i * q_stride,
                       query_scale + i * n.groups, query_sum + i * n.groups);
  }

  for (int64_t block = range.first_block; block < range.end_block; ++block) {
    BlockPages pages = block_pages(a, tile, range, a.k, block);
    for (int64_t h = 0; h < tile.heads; ++h, next_head(a, pages)) {
      const BlockRows rows = block_rows(a, pages, n.columns, 0, kBlockKeys, s.padded);
      load_block_scales<kInt4>(layout, pages, s);
      for (int64_t octet = 0; octet < kOctets; ++octet) {
        const auto score = [&]<int Q>(int64_t i) __attribute__((always_inline)) {
          for (int64_t g = 0; g < n.groups; ++g) {
            const int64_t first = g * n.group_columns, at = g * kBlockKeys + octet * kOctet;
            score_octet<kInt4, Q>(rows, octet, s.q + i * q_stride, q_stride, first,
                                  smaller(first + n.group_columns, n.columns), n.columns,
                                  query_scale + i * n.groups + g, query_sum + i * n.groups + g,
                                  n.groups, s.scales + at, s.mins + at, g == 0,
                                  s.scores + i * kSplitKeys + block * kBlockKeys + octet * kOctet);
          }
        };
        const int64_t end = (h + 1) * per_head;
        int64_t i = h * per_head;
        for (; i + 4 <= end; i += 4) score.template operator()<4>(i);
        for (; i + 2 <= end; i += 2) score.template operator()<2>(i);
        for (; i < end; ++i) score.template operator()<1>(i);
      }
    }
  }

  for (int64_t i = 0; i < queries; ++i) {
    softmax_query(a, tile, range, i, a.scale, s.scores + i * kSplitKeys, result);
  }

  float units[kTileQueries * kMaxGroups], offsets[kTileQueries * kMaxGroups] = {};
  for (int64_t block = range.first_block; block < range.end_block; ++block) {
    BlockPages pages = block_pages(a, tile, range, a.v, block);
    for (int64_t h = 0; h < tile.heads; ++h, next_head(a, pages)) {
      // Codes of keys that were never stored are numbers all the same, and their weight is 0.
      const BlockRows rows = block_rows(a, pages, n.columns, 0, kBlockKeys, s.padded);
      load_block_scales<kInt4>(layout, pages, s);
      const int64_t end = (h + 1) * per_head, p_stride = n.groups * 2 * kBlockKeys;
      for (int64_t i = h * per_head; i < end; ++i) {
        for (int64_t g = 0; g < n.groups; ++g) {
          weigh<kInt4>(s.scores + i * kSplitKeys + block * kBlockKeys, s.scales + g * kBlockKeys,
                       s.mins + g * kBlockKeys, s.p + i * p_stride + g * 2 * kBlockKeys,
                       units + i * n.groups + g, offsets + i * n.groups + g);
        }
      }
      for (int64_t octet = 0; octet < kOctets; ++octet) {
        for (int64_t c = 0; c < n.columns; c += 16) {
          transpose_octet(rows, octet, c, s.transposed + c * kBlockKeys + 2 * kOctet * octet);
        }
      }
      const auto add = [&]<int Q>(int64_t i) __attribute__((always_inline)) {
        add_block<kInt4, Q>(a, s, n, s.p + i * p_stride, units + i * n.groups,
                            result.out + i * a.padded_dim);
      };
      int64_t i = h * per_head;
      for (; i + 4 <= end; i += 4) add.template operator()<4>(i);
      for (; i + 2 <= end; i += 2) add.template operator()<2>(i);
      for (; i < end; ++i) add.template operator()<1>(i);
    }
  }
  if (!kInt4) return;
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t g = 0; g < n.groups; ++g) {
      float* out = result.out + i * a.padded_dim + g * kKvGroup;
      for (int64_t c = 0; c < group_size(layout, g); ++c) out[c] += offsets[i * n.groups + g];
    }
  }
}

}  // namespace

constinit const AttendSplit kAttendInt8I8mm = attend_codes<false>;
constinit const AttendSplit kAttendInt4I8mm = attend_codes<true>;

}  // namespace spillway
