// SPDX-License-Identifier: Apache-2.0
// Attention over int8 and int4 pages with 8-bit dot products, for ARM processors without matrix
// multiplication of bytes. The file is compiled for them, so it contains nothing else.
//
// Codes stay bytes. Queries, and probabilities times the scales of V, become 16-bit integers of two
// signed bytes, high and low, whose products with codes are added exactly: a query's result does
// not depend on the others. All queries of a KV head share what is read and unpacked.
//
// The vector instructions, of which Neoverse N1 does two a cycle, are per line of 64 bytes and Q
// queries, with heads of 128: int8 keys 8 + 13 Q (8 Q are products, 3 Q softmax) and values 10 Q,
// int4 keys 16 + 27 Q and values 8 + 21 Q. With four queries that is 50 and 107 on average: 6.4 and
// 3.0 GB/s at 2.5 GHz, of which it reaches 62% and 72%.
#include "cpu/attention/attention_code_groups_inl.h"
#include "cpu/attention/attention_kernels.h"
#include "cpu/attention/attention_neon_inl.h"
#include "cpu/attention/attention_softmax_inl.h"
#include "cpu/fresh_zero_neon_inl.h"

namespace spillway {
namespace {

constexpr float kLargest16 = 32512;   // 127 * 256: high bytes stay in -127 to 127
constexpr int64_t kMostQueries = 4;   // queries that share a load of values
constexpr int64_t kPageWeights = 64;  // bytes of a query's weights for a page

// Integers as bytes: 256 * high + low.
struct Bytes {
  int8x16_t high, low;
};
// Converts floats, from -kLargest16 to kLargest16 after multiplying by `factor`. Adding 3 * 2^22
// rounds to an integer and leaves it in the low bits; conversions would be half as fast.
[[gnu::always_inline]] static inline Bytes to_bytes(const float* x, float factor) {
  int16x8_t half[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const float32x4_t shift = vdupq_n_f32(12582912);
    const float32x4_t a = vfmaq_n_f32(shift, vld1q_f32(x + 8 * i), factor);
    const float32x4_t b = vfmaq_n_f32(shift, vld1q_f32(x + 8 * i + 4), factor);
    half[i] = vuzp1q_s16(vreinterpretq_s16_f32(a), vreinterpretq_s16_f32(b));
  }
  // The low byte is taken as signed, modulo 256, and the high byte is the rest.
  const int16x8_t round = vdupq_n_s16(128);
  return {vuzp2q_s8(vreinterpretq_s8_s16(vaddq_s16(half[0], round)),
                    vreinterpretq_s8_s16(vaddq_s16(half[1], round))),
          vuzp1q_s8(vreinterpretq_s8_s16(half[0]), vreinterpretq_s8_s16(half[1]))};
}

// Returns 256 * high + low.
[[gnu::always_inline]] static inline int32x4_t join(int32x4_t high, int32x4_t low) {
  return vaddq_s32(vshlq_n_s32(high, 8), low);
}

// Adds products in assembly, because the compiler would move sums between registers.
[[gnu::always_inline]] static inline void add_products(int32x4_t& sum, int8x16_t x, int8x16_t y) {
  asm("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(x), "w"(y));
}
// Does the same with word `kWord` of y.
template <int kWord>
[[gnu::always_inline]] static inline void add_products(int32x4_t& sum, int8x16_t x, int8x16_t y) {
  asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(x), "w"(y), "i"(kWord));
}

// ---- Scores ----

struct RoundedQuery {
  float scale[kMostGroups], sum[kMostGroups];
};

// Converts one query to operands: per group 64 high bytes, then 64 low ones, in the order in which
// keys are unpacked, and zero where a group is shorter.
template <bool kInt4>
static inline RoundedQuery round_query(const KvPageLayout& layout, const float* q, int8_t* out) {
  RoundedQuery rounded;
  for (int64_t g = 0; g < layout.groups; ++g, q += kKvGroup, out += 2 * kKvGroup) {
    float x[kKvGroup] = {};
    const int64_t size = group_size(layout, g), run = kInt4 ? size / 2 : size;
    memcpy(x, q, static_cast<size_t>(run) * sizeof(float));
    if (kInt4) memcpy(x + kKvGroup / 2, q + run, static_cast<size_t>(run) * sizeof(float));
    float32x4_t top = vdupq_n_f32(0), sum = top, check = top;
    for (int64_t i = 0; i < kKvGroup; i += 4) {
      const float32x4_t value = vld1q_f32(x + i);
      top = vmaxnmq_f32(top, vabsq_f32(value));
      sum = vaddq_f32(sum, value);
      check = vfmaq_n_f32(check, value, 0);
    }
    const float largest = vmaxnmvq_f32(top);
    // This is NaN if an element is not finite, and then so is every score.
    rounded.scale[g] = largest / kLargest16 + vaddvq_f32(check);
    rounded.sum[g] = vaddvq_f32(sum);
    const float inverse = largest > 1e-30F ? kLargest16 / largest : 0;
    for (int64_t i = 0; i < kKvGroup; i += 16) {
      const Bytes bytes = to_bytes(x + i, inverse);
      vst1q_s8(out + i, bytes.high);
      vst1q_s8(out + kKvGroup + i, bytes.low);
    }
  }
  return rounded;
}

// Transposes 16 bytes of each of four rows: out[i] has word i of each.
[[gnu::always_inline]] static inline void turn(const uint8_t* rows, int64_t stride,
                                               uint8x16_t* out) {
  uint32x4_t x[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) x[i] = vreinterpretq_u32_u8(vld1q_u8(rows + i * stride));
  const uint64x2_t a = vreinterpretq_u64_u32(vzip1q_u32(x[0], x[1]));
  const uint64x2_t b = vreinterpretq_u64_u32(vzip2q_u32(x[0], x[1]));
  const uint64x2_t c = vreinterpretq_u64_u32(vzip1q_u32(x[2], x[3]));
  const uint64x2_t d = vreinterpretq_u64_u32(vzip2q_u32(x[2], x[3]));
  out[0] = vreinterpretq_u8_u64(vzip1q_u64(a, c));
  out[1] = vreinterpretq_u8_u64(vzip2q_u64(a, c));
  out[2] = vreinterpretq_u8_u64(vzip1q_u64(b, d));
  out[3] = vreinterpretq_u8_u64(vzip2q_u64(b, d));
}

// Adds one group of four keys, which stay in registers, to the scores of all queries: scores += dot
// * scale * query's scale + min * query's sum. Lanes are keys, so a query's operand is a word of
// four bytes, which the instruction picks out of a vector by itself. kEven means that the number of
// queries is even: the version that has to handle a last single query spills registers.
template <bool kInt4, bool kEven>
[[gnu::noinline]] static void score_four(const uint8_t* rows, int64_t stride, const int8_t* q,
                                         int64_t q_stride, const RoundedQuery* rounded, int64_t g,
                                         int64_t queries, float32x4_t scale, float32x4_t min,
                                         float* scores) {
  int8x16_t x[16];
#pragma GCC unroll 4
  for (int i = 4; i < 8; ++i) __builtin_prefetch(rows + i * stride);
#pragma GCC unroll 4
  for (int part = 0; part < (kInt4 ? 2 : 4); ++part) {
    uint8x16_t words[4];
    turn(rows + 16 * part, stride, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      if (kInt4) {
        x[4 * part + i] = vreinterpretq_s8_u8(vandq_u8(words[i], vdupq_n_u8(15)));
        x[8 + 4 * part + i] = vreinterpretq_s8_u8(vshrq_n_u8(words[i], 4));
      } else {
        x[4 * part + i] = vreinterpretq_s8_u8(words[i]);
      }
    }
  }
  const auto score = [&]<int Q>(int64_t first) __attribute__((always_inline)) {
    int32x4_t high[Q], low[Q];
#pragma GCC unroll 2
    for (int i = 0; i < Q; ++i) high[i] = fresh_zero(), low[i] = fresh_zero();
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      int8x16_t h[Q], l[Q];
#pragma GCC unroll 2
      for (int i = 0; i < Q; ++i) {
        h[i] = vld1q_s8(q + (first + i) * q_stride + 16 * part);
        l[i] = vld1q_s8(q + (first + i) * q_stride + kKvGroup + 16 * part);
      }
      const auto add = [&]<int kWord>() __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int i = 0; i < Q; ++i) {
          add_products<kWord>(high[i], x[4 * part + kWord], h[i]);
          add_products<kWord>(low[i], x[4 * part + kWord], l[i]);
        }
      };
      add.template operator()<0>();
      add.template operator()<1>();
      add.template operator()<2>();
      add.template operator()<3>();
    }
#pragma GCC unroll 2
    for (int i = 0; i < Q; ++i) {
      float* to = scores + (first + i) * kSplitKeys;
      float32x4_t s = vmulq_f32(vcvtq_f32_s32(join(high[i], low[i])), scale);
      s = vmulq_n_f32(s, rounded[first + i].scale[g]);
      if (g > 0) s = vaddq_f32(s, vld1q_f32(to));
      if (kInt4) s = vfmaq_n_f32(s, min, rounded[first + i].sum[g]);
      vst1q_f32(to, s);
    }
  };
  int64_t i = 0;
#pragma GCC unroll 1
  for (; i + 2 <= queries; i += 2) score.template operator()<2>(i);
  if (!kEven && i < queries) score.template operator()<1>(i);
}

// The rows of a page, with zeros after those that do not fill their last group.
struct CodeRows {
  const uint8_t* at;
  int64_t stride;
};
static inline CodeRows code_rows(const KvPageLayout& layout, const uint8_t* page, int64_t columns,
                                 uint8_t* padded) {
  const int64_t bytes = layout.row_bytes;
  const uint8_t* codes = page + layout.codes_at;
  if (bytes == columns) return {codes, bytes};
  for (int64_t t = 0; t < kPageTokens; ++t, codes += bytes) {
    memcpy(padded + t * columns, codes, static_cast<size_t>(bytes));
    memset(padded + t * columns + bytes, 0, static_cast<size_t>(columns - bytes));
  }
  return {padded, columns};
}

template <bool kInt4>
static inline void score_page(const KvPageLayout& layout, const uint8_t* page, const int8_t* q,
                              const RoundedQuery* rounded, int64_t queries, uint8_t* padded,
                              float* scores) {
  constexpr int64_t kGroupBytes = kInt4 ? kKvGroup / 2 : kKvGroup;
  const CodeRows rows = code_rows(layout, page, layout.groups * kGroupBytes, padded);
  const auto score = queries % 2 == 0 ? score_four<kInt4, true> : score_four<kInt4, false>;
  for (int64_t t = 0; t < kPageTokens; t += 4) {
    for (int64_t g = 0; g < layout.groups; ++g) {
      const int64_t at = 2 * (g * kPageTokens + t);
      score(rows.at + t * rows.stride + g * kGroupBytes, rows.stride, q + g * 2 * kKvGroup,
            layout.groups * 2 * kKvGroup, rounded, g, queries, Neon::load_halves(page + at),
            kInt4 ? Neon::load_halves(page + layout.mins_at + at) : Neon::set(0), scores + t);
    }
  }
}

// ---- Values ----

struct ValueScratch {
  float* scales;    // [groups][256], from the cut's first page on
  float* mins;      // like scales
  float* products;  // [256]
  int8_t* weights;  // [kMostQueries][pages][high, low][halves of the page][2][8 tokens]
};

// The meaning of a query's integers: an element is unit * sum of products + offset.
struct WeightUnit {
  float unit, offset;
};

// Converts probabilities times the scales of V to 16-bit integers. Scales of keys that were never
// stored may be NaN; their probability is 0. Values are stored as [byte][8 tokens][next byte][8
// tokens], so weights are written twice.
template <bool kInt4>
[[gnu::noinline]] static WeightUnit weigh(const float* p, const float* scales, const float* mins,
                                          int64_t pages, float* products, int8_t* out) {
  float32x4_t top[2] = {vdupq_n_f32(0), vdupq_n_f32(0)}, sum = top[0];
  for (int64_t i = 0; i < pages * kPageTokens; i += 8) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const int64_t at = i + 4 * j;
      const float32x4_t x = vld1q_f32(p + at);
      const float32x4_t product = Neon::where_any(x, vmulq_f32(x, vld1q_f32(scales + at)));
      vst1q_f32(products + at, product);
      top[j] = vmaxq_f32(top[j], product);  // keeps NaN
      if (kInt4) sum = vaddq_f32(sum, Neon::where_any(x, vmulq_f32(x, vld1q_f32(mins + at))));
    }
  }
  const float largest = vmaxvq_f32(vmaxq_f32(top[0], top[1]));
  // Below this limit the inverse would overflow, and it is negligible beside the largest
  // probability, which is 1.
  const float factor = largest > 1e-30F ? kLargest16 / largest : 0;
  for (int64_t page = 0; page < pages; ++page, products += kPageTokens, out += kPageWeights) {
    const Bytes bytes = to_bytes(products, factor);
    const int64x2_t high = vreinterpretq_s64_s8(bytes.high), low = vreinterpretq_s64_s8(bytes.low);
    vst1q_s8(out, vreinterpretq_s8_s64(vdupq_laneq_s64(high, 0)));
    vst1q_s8(out + 16, vreinterpretq_s8_s64(vdupq_laneq_s64(high, 1)));
    vst1q_s8(out + 32, vreinterpretq_s8_s64(vdupq_laneq_s64(low, 0)));
    vst1q_s8(out + 48, vreinterpretq_s8_s64(vdupq_laneq_s64(low, 1)));
  }
  return {largest / kLargest16, vaddvq_f32(sum)};
}

// Adds up elements of Q queries from the codes at byte `at` of each page: four of int8, or two
// bytes of int4, whose low and high halves are elements `half` apart.
template <bool kInt4, int Q>
[[gnu::noinline]] static void add_strip(const uint8_t* const* pages, int64_t count, int64_t at,
                                        const int8_t* weights, const WeightUnit* units,
                                        int64_t half, float* out, int64_t out_stride) {
  int32x4_t high[Q][2], low[Q][2];
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      high[i][k] = fresh_zero();
      low[i][k] = fresh_zero();
    }
  }
#pragma GCC unroll 1
  for (int64_t page = 0; page < count; ++page, weights += kPageWeights) {
    const uint8_t* from = pages[page] + at;
    __builtin_prefetch(from + 64);  // for the next strip
    int8x16_t x[2][2];              // [which elements][half of the page]
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
      const uint8x16_t first = vld1q_u8(from + 16 * t);
      if (kInt4) {
        x[0][t] = vreinterpretq_s8_u8(vandq_u8(first, vdupq_n_u8(15)));
        x[1][t] = vreinterpretq_s8_u8(vshrq_n_u8(first, 4));
      } else {
        x[0][t] = vreinterpretq_s8_u8(first);
        x[1][t] = vreinterpretq_s8_u8(vld1q_u8(from + 32 + 16 * t));
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) {
      const int8_t* w = weights + i * kCutPages * kPageWeights;
#pragma GCC unroll 2
      for (int t = 0; t < 2; ++t) {
        const int8x16_t h = vld1q_s8(w + 16 * t), l = vld1q_s8(w + 32 + 16 * t);
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) {
          add_products(high[i][k], x[k][t], h);
          add_products(low[i][k], x[k][t], l);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; ++i, out += out_stride) {
    const int32x4_t sums = vpaddq_s32(join(high[i][0], low[i][0]), join(high[i][1], low[i][1]));
    const float32x4_t elements =
        vfmaq_n_f32(vdupq_n_f32(units[i].offset), vcvtq_f32_s32(sums), units[i].unit);
    if (kInt4) {
      vst1_f32(out, vget_low_f32(elements));
      vst1_f32(out + half, vget_high_f32(elements));
    } else {
      vst1q_f32(out, elements);
    }
  }
}

// Loads the scales and minima of V of a KV head's keys.
template <bool kInt4>
static inline void load_value_scales(const KvPageLayout& layout, const uint8_t* const* pages,
                                     int64_t count, const ValueScratch& s) {
  for (int64_t page = 0; page < count; ++page) {
    for (int64_t g = 0; g < layout.groups; ++g) {
      const int64_t from = 2 * g * kPageTokens, to = g * kSplitKeys + page * kPageTokens;
      load_sixteen<Neon>(pages[page] + from, s.scales + to);
      if (kInt4) load_sixteen<Neon>(pages[page] + layout.mins_at + from, s.mins + to);
    }
  }
}

// Adds the values of a KV head for `queries` queries, whose probabilities begin at the cut's first
// page.
template <bool kInt4>
static inline void add_head(const AttentionArgs& a, const uint8_t* const* pages, int64_t count,
                            int64_t queries, const float* p, const ValueScratch& s, float* out,
                            Ahead& ahead) {
  constexpr int64_t kGroupBytes = kInt4 ? kKvGroup / 2 : kKvGroup, kStrip = kInt4 ? 2 : 4;
  for (int64_t g = 0; g < a.layout.groups; ++g) {
    const int64_t size = group_size(a.layout, g), columns = kInt4 ? size / 2 : size;
    for (int64_t first = 0; first < queries; first += kMostQueries) {
      const int64_t chunk = smaller(queries - first, kMostQueries);
      WeightUnit units[kMostQueries];
      for (int64_t i = 0; i < chunk; ++i) {
        units[i] = weigh<kInt4>(p + (first + i) * kSplitKeys, s.scales + g * kSplitKeys,
                                s.mins + g * kSplitKeys, count, s.products,
                                s.weights + i * kCutPages * kPageWeights);
      }
      float* to = out + first * a.padded_dim + g * kKvGroup;
      with_count<kMostQueries>(
          chunk, [&]<int Q>() __attribute__((always_inline)) {
            for (int64_t c = 0; c < columns; c += kStrip) {
              ahead.step(1);
              add_strip<kInt4, Q>(pages, count,
                                  a.layout.codes_at + (g * kGroupBytes + c) * kPageTokens,
                                  s.weights, units, columns, to + c, a.padded_dim);
            }
          });
    }
  }
}

// Computes the softmax of the queries of a KV head. It is not inlined because its constants would
// not find registers.
[[gnu::noinline]] static void softmax_all(const AttentionArgs& a, const AttentionTile& tile,
                                          const Cut& cut, float* scores, float* maxima,
                                          float* sums) {
  for (int64_t i = 0; i < tile.rows * a.group; ++i) {
    softmax<Neon>(cut, seen_by(a, tile, cut.base, i), a.scale, scores + i * kSplitKeys, maxima + i,
                  sums + i);
  }
}

template <bool kInt4>
static void attend_codes(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                         const AttentionPartial& result, float* scratch) {
  const KvPageLayout& layout = a.layout;
  const int64_t queries = tile.rows * a.group;
  const Cut cut = cut_at(a, tile, split * kSplitKeys);
  clear_result(a, tile.heads * queries, result);
  if (cut.empty()) return;

  Pieces pieces{reinterpret_cast<uint8_t*>(scratch)};
  const int64_t q_bytes = layout.groups * 2 * kKvGroup;
  float* scores = pieces.take<float>(kTileQueries * kSplitKeys);  // later probabilities
  int8_t* q = pieces.take<int8_t>(kTileQueries * q_bytes);
  uint8_t* padded = pieces.take<uint8_t>(kPageTokens * layout.groups * kKvGroup);
  ValueScratch s;
  s.scales = pieces.take<float>(layout.groups * kSplitKeys);
  s.mins = pieces.take<float>(layout.groups * kSplitKeys);
  s.products = pieces.take<float>(kSplitKeys);
  s.weights = pieces.take<int8_t>(kMostQueries * kCutPages * kPageWeights);
  const int64_t from = cut.key_of(cut.first_page);
  for (int64_t h = 0; h < tile.heads; ++h) {
    RoundedQuery rounded[kTileQueries];
    for (int64_t i = 0; i < queries; ++i) {
      rounded[i] = round_query<kInt4>(layout, query_at(a, tile, h, i), q + i * q_bytes);
    }
    KeysAhead ahead(a, tile, cut, {h, 1}, 1);
    for (int64_t page = cut.first_page; page < cut.end_page; ++page) {
      ahead.step();
      score_page<kInt4>(layout, page_of_keys(a, tile, page, h), q, rounded, queries, padded,
                        scores + cut.key_of(page));
    }
    const int64_t first = h * queries;
    softmax_all(a, tile, cut, scores, result.maximum + first, result.sum + first);
    const uint8_t* pages[kCutPages];
    for (int64_t i = 0; i < cut.pages(); ++i) {
      pages[i] = page_of_values(a, tile, cut.first_page + i, h);
    }
    load_value_scales<kInt4>(layout, pages, cut.pages(), s);
    Ahead keys = keys_after(a, tile, cut, {h, 1}, 1);
    keys.spread(a.head_dim / 4 * ((queries + kMostQueries - 1) / kMostQueries));
    add_head<kInt4>(a, pages, cut.pages(), queries, scores + from, s,
                    result.out + first * a.padded_dim, keys);
  }
}

}  // namespace

constinit const AttendSplit kAttendInt8Dotprod = attend_codes<false>;
constinit const AttendSplit kAttendInt4Dotprod = attend_codes<true>;

}  // namespace spillway
