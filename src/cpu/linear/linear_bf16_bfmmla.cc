// SPDX-License-Identifier: Apache-2.0
// The bfloat16 kernels with ARM's matrix multiplication. The file is compiled for it, so it
// contains nothing else.
//
// An operand of the instruction is two rows (or tokens) of four elements. A panel is four strips of
// eight rows, each [k / 4][4 row pairs][2][4]; a token tile is [k / 4][5 token pairs][2][4]. For
// each step of four columns a strip and a tile give 20 products from nine loads, with the 20 sums
// in registers.
#include "cpu/linear/linear_bf16_args.h"
#include "cpu/linear/linear_int8_types_k_inl.h"

namespace spillway {
namespace {

constexpr int kStripPairs = 4, kTilePairs = 5;
constexpr int64_t kStripRows = 2 * kStripPairs, kTileTokens = 2 * kTilePairs;
constexpr int64_t kRowTile = 4 * kStripRows;
// Measurements show that four panels of 128 KB that stream from the L2 cache beat smaller ones that
// stay in the L1 cache, because sums go to memory and activations come from there less often.
constexpr int64_t kDepth = 2048, kPanels = 4;

// Rounds to the nearest, ties away from zero, in half the time of the conversion instruction below.
[[gnu::always_inline]] static inline uint16x8_t round_pair(float32x4_t first, float32x4_t second) {
  return vrshrn_high_n_u32(vrshrn_n_u32(vreinterpretq_u32_f32(first), 16),
                           vreinterpretq_u32_f32(second), 16);
}

[[gnu::always_inline]] static inline uint16x8_t round_to_even(float32x4_t first,
                                                              float32x4_t second) {
  return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(first), second));
}

[[gnu::always_inline]] static inline float32x4_t load_or_zero(const float* row, bool exists) {
  return exists ? vld1q_f32(row) : vdupq_n_f32(0);
}

// Converts rows of floats to operands, `pairs` side by side; missing rows are zero.
template <int kPairs>
[[gnu::always_inline]] static inline void pack_pairs(const float* rows, int64_t stride,
                                                     int64_t count, int64_t depth, uint16_t* to) {
  for (int p = 0; p < kPairs; ++p) {
    const float* first = rows + 2 * p * stride;
    const float* second = first + stride;
    const bool has_first = 2 * p < count, has_second = 2 * p + 1 < count;
    for (int64_t k = 0; k < depth; k += 4) {
      vst1q_u16(to + (k / 4 * kPairs + p) * 8, round_to_even(load_or_zero(first + k, has_first),
                                                             load_or_zero(second + k, has_second)));
    }
  }
}

void pack_rows(const float* rows, int64_t stride, int64_t count, int64_t depth, uint16_t* panel) {
  for (int64_t row = 0; row < kRowTile; row += kStripRows) {
    pack_pairs<kStripPairs>(rows + row * stride, stride, count - row, depth, panel + row * depth);
  }
}
void pack_tokens(const float* x, int64_t stride, int64_t count, int64_t depth, uint16_t* tile) {
  pack_pairs<kTilePairs>(x, stride, count, depth, tile);
}

// Returns where the operand of row pair `pair`, columns k to k + 3, is in a panel.
[[gnu::always_inline]] static inline uint16_t* operand_at(uint16_t* panel, int64_t depth,
                                                          int64_t pair, int64_t k) {
  return panel + pair / kStripPairs * kStripRows * depth +
         (k / 4 * kStripPairs + pair % kStripPairs) * 8;
}

struct HalfRow {
  [[gnu::always_inline]] static inline void convert(const uint8_t* first, const uint8_t* second,
                                                    uint16_t* to) {
    const float16x8_t a = vreinterpretq_f16_u8(vld1q_u8(first));
    const float16x8_t b = vreinterpretq_f16_u8(vld1q_u8(second));
    vst1q_u16(to, round_pair(vcvt_f32_f16(vget_low_f16(a)), vcvt_f32_f16(vget_low_f16(b))));
    vst1q_u16(to + 8 * kStripPairs, round_pair(vcvt_high_f32_f16(a), vcvt_high_f32_f16(b)));
  }
};
struct BfloatRow {
  [[gnu::always_inline]] static inline void convert(const uint8_t* first, const uint8_t* second,
                                                    uint16_t* to) {
    const uint64x2_t a = vreinterpretq_u64_u8(vld1q_u8(first));
    const uint64x2_t b = vreinterpretq_u64_u8(vld1q_u8(second));
    vst1q_u16(to, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
    vst1q_u16(to + 8 * kStripPairs, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
  }
};

template <class Row>
void fill_rows(const uint8_t* w, int64_t row_bytes, int64_t count, int64_t depth, uint16_t* panel) {
  constexpr uint8_t kZeros[16] = {};
  for (int64_t pair = 0; pair < kRowTile / 2; ++pair) {
    const uint8_t* first = w + 2 * pair * row_bytes;
    const uint8_t* second = first + row_bytes;
    const bool has_first = 2 * pair < count, has_second = 2 * pair + 1 < count;
    for (int64_t k = 0; k < depth; k += 8) {
      Row::convert(has_first ? first + 2 * k : kZeros, has_second ? second + 2 * k : kZeros,
                   operand_at(panel, depth, pair, k));
    }
  }
}

// The scales and offsets of two rows, whose values are scale * code + offset, with codes given as
// floats kBias + code.
struct RowPair {
  float32x4_t scale[2], offset[2];
};
// A byte b in bits 8 to 15 of a float with this upper half is 32768 + b: no conversion is needed,
// and the product with a scale of 11 bits is exact.
constexpr uint16_t kUpperHalf = 0x4700;
constexpr float kBias = 32768 + 128;

// Decodes eight columns of two rows from signed bytes as packed types give them.
[[gnu::always_inline]] static inline void decode_eight(int8x16_t codes, const RowPair& rows,
                                                       uint16_t* to) {
  const uint8x16_t bytes = veorq_u8(vreinterpretq_u8_s8(codes), vdupq_n_u8(0x80));
  const uint8x16_t zero = vdupq_n_u8(0);
  const uint16x8_t upper = vdupq_n_u16(kUpperHalf);
  float32x4_t value[2][2];
#pragma GCC unroll 2
  for (int r = 0; r < 2; ++r) {
    const uint16x8_t wide =
        vreinterpretq_u16_u8(r == 0 ? vzip1q_u8(zero, bytes) : vzip2q_u8(zero, bytes));
    value[r][0] =
        vfmaq_f32(rows.offset[r], vreinterpretq_f32_u16(vzip1q_u16(wide, upper)), rows.scale[r]);
    value[r][1] =
        vfmaq_f32(rows.offset[r], vreinterpretq_f32_u16(vzip2q_u16(wide, upper)), rows.scale[r]);
  }
  vst1q_u16(to, round_pair(value[0][0], value[1][0]));
  vst1q_u16(to + 8 * kStripPairs, round_pair(value[0][1], value[1][1]));
}

// Returns the pair's rows of a quad's scales and minima.
template <int kPair>
[[gnu::always_inline]] static inline RowPair row_pair(float32x4_t scale, float32x4_t offset) {
  return {{vdupq_laneq_f32(scale, 2 * kPair), vdupq_laneq_f32(scale, 2 * kPair + 1)},
          {vdupq_laneq_f32(offset, 2 * kPair), vdupq_laneq_f32(offset, 2 * kPair + 1)}};
}

template <class W, int kPair>
[[gnu::always_inline]] static inline void fill_pair(const uint8_t* b, int s, int quad,
                                                    const float32x4_t* scale,
                                                    const float32x4_t* offset, uint16_t* to) {
  // Eight elements of all pairs of a strip lie between two steps of four columns.
  constexpr int64_t kEight = 2 * 8 * kStripPairs;
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const Operands codes = W::quants(b, s, quad * 2 + kPair, h);
    decode_eight(codes.low, row_pair<kPair>(scale[0], offset[0]), to + h * kEight);
    decode_eight(codes.high, row_pair<kPair>(scale[1], offset[1]), to + (2 + h) * kEight);
  }
}

// The scales and minima of sub-block s, of rows 4 quad.. and each 16 columns.
template <class W>
struct SubScales {
  [[gnu::always_inline]] inline SubScales(const uint8_t* block, int sub) : b(block), s(sub) {}
  [[gnu::always_inline]] inline float32x4_t scale(int, int quad) const {
    return W::scale(b, s, quad);
  }
  [[gnu::always_inline]] inline float32x4_t minimum(int, int quad) const {
    return W::minimum(b, s, quad);
  }
  const uint8_t* b;
  int s;
};
template <class W>
requires requires { W::kExact; }  // for K types
struct SubScales<W> {
  [[gnu::always_inline]] inline SubScales(const uint8_t* block, int sub) : b(block) {
    for (int half = 0; half < 2; ++half) {
      scales[half] = W::scales(b, sub, W::kHalves ? half : 0);
      if constexpr (W::kMinima) minima[half] = W::minima(b, sub, W::kHalves ? half : 0);
    }
  }
  [[gnu::always_inline]] static inline float32x4_t floats_at(int8x16_t bytes, int quad) {
    const int16x8_t wide = quad < 2 ? vmovl_s8(vget_low_s8(bytes)) : vmovl_high_s8(bytes);
    return vcvtq_f32_s32(quad % 2 == 0 ? vmovl_s16(vget_low_s16(wide)) : vmovl_high_s16(wide));
  }
  [[gnu::always_inline]] inline float32x4_t scale(int half, int quad) const {
    return vmulq_f32(W::d(b, quad), floats_at(scales[half], quad));
  }
  [[gnu::always_inline]] inline float32x4_t minimum(int half, int quad) const {
    return vmulq_f32(vnegq_f32(W::dmin(b, quad)), floats_at(minima[half], quad));
  }
  const uint8_t* b;
  int8x16_t scales[2] = {}, minima[2] = {};
};

template <class W>
void fill_groups(const uint8_t* w, int64_t row_bytes, int64_t count, int64_t depth,
                 uint16_t* panel) {
  for (int64_t row = 0; row < kRowTile; row += 16) {
    if (row >= count) {
      for (int64_t i = row * depth; i < (row + 16) * depth; ++i) panel[i] = 0;
      continue;
    }
    const uint8_t* b = w + row * row_bytes;
    for (int64_t k = 0; k < depth; k += 32 * W::kSubs, b += W::kBytes) {
      for (int s = 0; s < W::kSubs; ++s) {
        const SubScales<W> sub(b, s);
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; ++quad) {
          float32x4_t scale[2], offset[2];
          for (int half = 0; half < 2; ++half) {
            scale[half] = vmulq_n_f32(sub.scale(half, quad), 1.0F / W::kLift);
            offset[half] = vmulq_n_f32(scale[half], -kBias);
            if constexpr (W::kMinima) {
              offset[half] = vaddq_f32(offset[half], sub.minimum(half, quad));
            }
          }
          uint16_t* to = operand_at(panel, depth, row / 2 + 2 * quad, k + 32 * s);
          fill_pair<W, 0>(b, s, quad, scale, offset, to);
          fill_pair<W, 1>(b, s, quad, scale, offset, to + 8);
        }
      }
    }
  }
}

Bf16Fill try_fill(DType type, bool packed) {
  if (!packed) {
    if (type == DType::kF16) return fill_rows<HalfRow>;
    return type == DType::kBF16 ? fill_rows<BfloatRow> : nullptr;
  }
  switch (type) {
    case DType::kQ4_0:
      return fill_groups<PackedQ4_0>;
    case DType::kQ4_1:
      return fill_groups<PackedQ4_1>;
    case DType::kQ5_0:
      return fill_groups<PackedQ5_0>;
    case DType::kQ5_1:
      return fill_groups<PackedQ5_1>;
    case DType::kQ8_0:
      return fill_groups<PackedQ8_0>;
    case DType::kQ2_K:
      return fill_groups<PackedQ2_K>;
    case DType::kQ3_K:
      return fill_groups<PackedQ3_K>;
    case DType::kQ4_K:
      return fill_groups<PackedQ4_K>;
    case DType::kQ5_K:
      return fill_groups<PackedQ5_K>;
    case DType::kQ6_K:
      return fill_groups<PackedQ6_K>;
    case DType::kG4:
      return fill_groups<PackedG4>;
    default:
      return nullptr;
  }
}

// sum[p][j] has (row 0, token 0), (0, 1), (1, 0), (1, 1) of row pair p and token pair j.
struct StripSums {
  float32x4_t sum[kStripPairs][kTilePairs];
};

// Returns a zero that the compiler does not know: otherwise it shares one register for all sums at
// first and moves them about in the loop.
[[gnu::always_inline]] static inline float32x4_t fresh_zero() {
  float32x4_t v;
  asm volatile("movi %0.4s, #0" : "=w"(v));
  return v;
}

[[gnu::always_inline]] static inline void multiply_strip(const uint16_t* w, const uint16_t* x,
                                                         int64_t depth, StripSums& result) {
  float32x4_t sum[kStripPairs][kTilePairs];
  for (int p = 0; p < kStripPairs; ++p) {
    for (int j = 0; j < kTilePairs; ++j) sum[p][j] = fresh_zero();
  }
  for (int64_t k = 0; k < depth; k += 8) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      bfloat16x8_t tokens[kTilePairs];
      for (int j = 0; j < kTilePairs; ++j) {
        tokens[j] = vreinterpretq_bf16_u16(vld1q_u16(x + (half * kTilePairs + j) * 8));
      }
#pragma GCC unroll 4
      for (int p = 0; p < kStripPairs; ++p) {
        const bfloat16x8_t rows =
            vreinterpretq_bf16_u16(vld1q_u16(w + (half * kStripPairs + p) * 8));
        for (int j = 0; j < kTilePairs; ++j) sum[p][j] = vbfmmlaq_f32(sum[p][j], rows, tokens[j]);
      }
    }
    w += 2 * 8 * kStripPairs;
    x += 2 * 8 * kTilePairs;
  }
  for (int p = 0; p < kStripPairs; ++p) {
    for (int j = 0; j < kTilePairs; ++j) result.sum[p][j] = sum[p][j];
  }
}

// Returns rows 4q to 4q + 3 of the strip for one token.
[[gnu::always_inline]] static inline float32x4_t rows_of(const StripSums& s, int quad, int j,
                                                         int token) {
  const float32x4_t first = s.sum[2 * quad][j], second = s.sum[2 * quad + 1][j];
  return token == 0 ? vuzp1q_f32(first, second) : vuzp2q_f32(first, second);
}

// Multiplies one strip with one token tile and adds the result to out or stores it there.
void strip_product(const Bf16Product& a, int64_t row, int64_t token) {
  StripSums s;
  multiply_strip(a.panel + row * a.depth, a.x + token / kTileTokens * a.x_tile_stride, a.depth, s);
  const int64_t rows = a.rows - row < kStripRows ? a.rows - row : kStripRows;
  const int64_t tokens = a.tokens - token < kTileTokens ? a.tokens - token : kTileTokens;
#pragma GCC unroll 5
  for (int j = 0; j < kTilePairs; ++j) {
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
      if (2 * j + t >= tokens) return;
      float* out = a.out + (token + 2 * j + t) * a.out_stride + row;
#pragma GCC unroll 2
      for (int quad = 0; quad < 2; ++quad) {
        const float32x4_t v = rows_of(s, quad, j, t);
        if (4 * quad + 4 <= rows) {
          float32x4_t old = a.add ? vld1q_f32(out + 4 * quad) : vdupq_n_f32(0);
          if (a.bias != nullptr) old = vaddq_f32(old, vld1q_f32(a.bias + row + 4 * quad));
          vst1q_f32(out + 4 * quad, vaddq_f32(old, v));
        } else {
          float lanes[4];
          vst1q_f32(lanes, v);
          for (int64_t i = 4 * quad; i < rows; ++i) {
            const float old = (a.add ? out[i] : 0) + (a.bias != nullptr ? a.bias[row + i] : 0);
            out[i] = old + lanes[i - 4 * quad];
          }
        }
      }
    }
  }
}

void multiply(const Bf16Product& a) {
  for (int64_t token = 0; token < a.tokens; token += kTileTokens) {
    for (int64_t row = 0; row < a.rows; row += kStripRows) strip_product(a, row, token);
  }
}

}  // namespace

constinit const Bf16Kernels kBfmmlaKernels = {.row_tile = kRowTile,
                                              .token_tile = kTileTokens,
                                              .max_depth = kDepth,
                                              .panels = kPanels,
                                              .chunk_tokens = kTileTokens,
                                              .pack_rows = pack_rows,
                                              .pack_tokens = pack_tokens,
                                              .multiply = multiply,
                                              .try_fill = try_fill};

}  // namespace spillway
