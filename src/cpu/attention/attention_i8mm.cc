// SPDX-License-Identifier: Apache-2.0
// Attention over int8 and int4 pages with 8-bit matrix multiplication. The file is compiled for it,
// so it contains nothing else.
//
// Codes stay 8-bit operands. Queries, and probabilities times the scales of V, become 16-bit
// integers of two signed bytes, high and low: the matrix instruction multiplies two rows of codes
// with two rows of 8 bytes, which are these two. Sums are exact integers. An int4 row is handled as
// columns of bytes: two elements share a column.
#include "cpu/attention/attention_arm_inl.h"
#include "cpu/attention/attention_kernels.h"

namespace spillway {
namespace {

constexpr float kLargest16 = 32512;  // 127 * 256: high bytes stay in -127 to 127

struct Sizes {
  int64_t columns;        // bytes of a row, rounded up to 16
  int64_t group_columns;  // of a full group
  int64_t groups;
};

// The parts of the scratch memory. Their sizes are counted in split_scratch_floats().
struct Scratch {
  float* scores;    // [queries, 256], later probabilities
  float* scales;    // [groups, 64]
  float* mins;      // [groups, 64]
  int8_t* q;        // [queries, kinds, columns / 8, 2, 8]
  int8_t* p;        // [queries, groups, 8 octets, 2, 8]
  uint8_t* padded;  // [64, columns]
};
static inline Scratch cut_scratch(float* memory, const Sizes& n, int64_t padded_dim) {
  Scratch s;
  s.scores = memory;
  s.scales = s.scores + kTileQueries * kSplitKeys;
  s.mins = s.scales + n.groups * kBlockKeys;
  s.q = reinterpret_cast<int8_t*>(s.mins + n.groups * kBlockKeys);
  s.p = s.q + kTileQueries * 2 * (padded_dim + 16);
  s.padded = reinterpret_cast<uint8_t*>(s.p + kTileQueries * n.groups * 2 * kBlockKeys);
  return s;
}

// Returns the largest magnitude of n values, a multiple of 4.
static inline float largest_of(const float* x, int64_t n) {
  float32x4_t top = vdupq_n_f32(0);
  for (int64_t i = 0; i < n; i += 4) top = vmaxq_f32(top, vabsq_f32(vld1q_f32(x + i)));
  return vmaxvq_f32(top);
}

// Writes 8 values as 16-bit integers: high bytes, then low bytes.
[[gnu::always_inline]] static inline void put_pair(float32x4_t x0, float32x4_t x1, int8_t* out) {
  const int16x8_t value =
      vcombine_s16(vmovn_s32(vcvtnq_s32_f32(x0)), vmovn_s32(vcvtnq_s32_f32(x1)));
  const int8x8_t high = vrshrn_n_s16(value, 8);
  // The rest, modulo 256, is -128 to 127.
  const int8x8_t low = vmovn_s16(value);
  vst1q_s8(out, vcombine_s8(high, low));
}

// Converts elements [at, at + 8) of x [size] times `factor`, with 0 from `size` on; sizes are
// multiples of 4.
static inline void put_elements(const float* x, int64_t at, int64_t size, float factor,
                                int8_t* out) {
  const float32x4_t zero = vdupq_n_f32(0);
  put_pair(at < size ? vmulq_n_f32(vld1q_f32(x + at), factor) : zero,
           at + 4 < size ? vmulq_n_f32(vld1q_f32(x + at + 4), factor) : zero, out);
}

// Computes the query's operands, for int4 those of the low elements of all columns before those of
// the high; the scale of each group, and for int4 its sum.
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

// Loads the scales (or minima) of a block's 64 keys.
static inline void load_scales(const BlockPages& pages, int64_t offset, float* out) {
  for (int64_t i = 0; i < kBlockPages; ++i) {
    const auto* halves = reinterpret_cast<const __fp16*>(pages.page[i] + offset);
    for (int64_t j = 0; j < kPageTokens; j += 4) {
      vst1q_f32(out + i * kPageTokens + j, vcvt_f32_f16(vld1_f16(halves + j)));
    }
  }
}

// Joins {high, low} pairs of four sums: 256 * high + low.
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

// Adds columns [first, end), which are one group, to the scores of Q queries for an octet: scores
// += (dot * query_scale) * scales + query_sum * mins. It is not inlined because the code around it
// would compete for the registers.
template <bool kInt4, int Q>
[[gnu::noinline]] static void score_octet(const BlockRows& rows, int64_t octet, const int8_t* q,
                                          int64_t q_stride, int64_t first, int64_t end,
                                          int64_t columns, const float* query_scale,
                                          const float* query_sum, int64_t groups,
                                          const float* scales, const float* mins, bool start,
                                          float* scores) {
  constexpr int kChains = Q <= 2 ? 2 : 1;  // sums that do not wait for each other; exact, so equal
  int32x4_t acc[Q][4][kChains];
  const int8_t* k[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) k[r] = reinterpret_cast<const int8_t*>(row_at(rows, octet, r));
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 2
      for (int n = 0; n < kChains; ++n) acc[i][r][n] = vdupq_n_s32(0);
    }
  }
#pragma GCC unroll 1
  for (int64_t c = first; c < end; c += 16) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const int8x16_t even = vld1q_s8(k[2 * r] + c), odd = vld1q_s8(k[2 * r + 1] + c);
      const int8x16_t x[2] = {rows_low(even, odd), rows_high(even, odd)};
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) {
        const auto add = [&](int8x16_t codes, int64_t at) __attribute__((always_inline)) {
#pragma GCC unroll 4
          for (int i = 0; i < Q; ++i) {
            int32x4_t& sum = acc[i][r][n % kChains];
            sum = vmmlaq_s32(sum, codes, vld1q_s8(q + i * q_stride + at));
          }
        };
        if constexpr (kInt4) {
          const uint8x16_t both = vreinterpretq_u8_s8(x[n]);
          add(vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))), 2 * c + 16 * n);
          add(vreinterpretq_s8_u8(vshrq_n_u8(both, 4)), 2 * (columns + c) + 16 * n);
        } else {
          add(x[n], 2 * c + 16 * n);
        }
      }
    }
  }
  const auto total = [&](int i, int r) __attribute__((always_inline)) {
    return kChains == 2 ? vaddq_s32(acc[i][r][0], acc[i][r][kChains - 1]) : acc[i][r][0];
  };
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
    float* out = scores + i * kSplitKeys;
#pragma GCC unroll 2
    for (int r = 0; r < 2; ++r) {
      const float32x4_t dots = join(total(i, 2 * r), total(i, 2 * r + 1));
      float32x4_t s =
          vmulq_n_f32(vmulq_f32(dots, vld1q_f32(scales + 4 * r)), query_scale[i * groups]);
      if (!start) s = vaddq_f32(s, vld1q_f32(out + 4 * r));
      if (kInt4) s = vfmaq_n_f32(s, vld1q_f32(mins + 4 * r), query_sum[i * groups]);
      vst1q_f32(out + 4 * r, s);
    }
  }
}

// Adds 64 tokens to the outputs of Q queries in P pairs of columns from column `c` of a group on,
// which is at byte `at` of the pages. For int4, whole bytes and their high halves are summed; the
// low halves are the difference.
template <bool kInt4, int Q, int P>
[[gnu::noinline]] static void add_pairs(const BlockPages& pages, int64_t at, const int8_t* p,
                                        int64_t p_stride, const float* units, int64_t groups,
                                        int64_t c, int64_t size, float* out, int64_t out_stride) {
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
// Unrolled, it would not fit the registers.
#pragma GCC unroll 1
  for (int64_t page = 0; page < kBlockPages; ++page) {
    int8x16_t weight[Q][2];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) {
      weight[i][0] = vld1q_s8(p + i * p_stride + 2 * kPageTokens * page);
      weight[i][1] = vld1q_s8(p + i * p_stride + 2 * kPageTokens * page + 16);
    }
    const auto* columns = reinterpret_cast<const int8_t*>(pages.page[page] + at);
#pragma GCC unroll 8
    for (int k = 0; k < P; ++k) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int8x16_t x = vld1q_s8(columns + (2 * k + half) * 16);
        if constexpr (kInt4) {
          const uint8x16_t both = vreinterpretq_u8_s8(x);
          const uint8x16_t high = vandq_u8(both, vdupq_n_u8(0xf0));
#pragma GCC unroll 4
          for (int i = 0; i < Q; ++i) {
            acc[i][k][0] = vusmmlaq_s32(acc[i][k][0], both, weight[i][half]);
            acc[i][k][1] = vusmmlaq_s32(acc[i][k][1], high, weight[i][half]);
          }
        } else {
#pragma GCC unroll 4
          for (int i = 0; i < Q; ++i) {
            acc[i][k][0] = vmmlaq_s32(acc[i][k][0], x, weight[i][half]);
          }
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

// Adds all columns of one block for Q queries; `out` is that of the first. Columns are taken 8 or
// 16 at a time, then 4.
template <bool kInt4, int Q>
static inline void add_block(const AttentionArgs& a, const BlockPages& pages, const Sizes& n,
                             const int8_t* p, const float* units, float* out) {
  constexpr int kPairs = kInt4 ? (Q >= 4 ? 2 : 4) : (Q >= 4 ? 4 : 8);
  for (int64_t g = 0; g < n.groups; ++g) {
    const int64_t size = group_size(a.layout, g), columns = kInt4 ? size / 2 : size;
    const auto add = [&]<int P>(int64_t c) __attribute__((always_inline)) {
      add_pairs<kInt4, Q, P>(pages, a.layout.codes_at + (g * n.group_columns + c) * kPageTokens,
                             p + g * 2 * kBlockKeys, n.groups * 2 * kBlockKeys, units + g, n.groups,
                             c, size, out + g * kKvGroup, a.padded_dim);
    };
    int64_t c = 0;
    for (; c + 2 * kPairs <= columns; c += 2 * kPairs) add.template operator()<kPairs>(c);
    for (; c < columns; c += 4) add.template operator()<2>(c);
  }
}

// Converts 64 probabilities of one query times the scales of V to 16-bit integers, and sets their
// unit; for int4 adds up probabilities times minima. Scales of keys that were never stored may be
// NaN; their probability is 0.
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
  // Below this limit the inverse would overflow, and it is negligible beside the largest
  // probability, which is 1.
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
      for (const int64_t octet : kOctetOrder) {
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
      load_block_scales<kInt4>(layout, pages, s);
      const int64_t end = (h + 1) * per_head, p_stride = n.groups * 2 * kBlockKeys;
      for (int64_t i = h * per_head; i < end; ++i) {
        for (int64_t g = 0; g < n.groups; ++g) {
          weigh<kInt4>(s.scores + i * kSplitKeys + block * kBlockKeys, s.scales + g * kBlockKeys,
                       s.mins + g * kBlockKeys, s.p + i * p_stride + g * 2 * kBlockKeys,
                       units + i * n.groups + g, offsets + i * n.groups + g);
        }
      }
      const auto add = [&]<int Q>(int64_t i) __attribute__((always_inline)) {
        add_block<kInt4, Q>(a, pages, n, s.p + i * p_stride, units + i * n.groups,
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
