// SPDX-License-Identifier: Apache-2.0
// Multiplies few tokens with BF16 and F16 rows with ARM's bfloat16 instructions. The file is
// compiled for them, so it contains nothing else.
//
// For one to four tokens on BF16 rows, each float is the sum of two bfloat16 (to 2^-16); two
// columns of products cost as much as one conversion of the weights to F32 would. More tokens are
// rounded to bfloat16, and so are F16 weights, in registers: linear_bf16 does that for many tokens,
// with panels.
//
// The matrix instruction multiplies two rows of four columns with two such columns of activations:
// two tokens, or the two parts of one. Packed: [k / 4][pairs][2][4].
#include "cpu/linear/linear_half_inl.h"

namespace spillway {
namespace {

using Operand = bfloat16x8_t;  // [2][4]

[[gnu::always_inline]] static inline Operand operand_at(const uint16_t* p) {
  return vreinterpretq_bf16_u16(vld1q_u16(p));
}

// Two rows, columns [0, 4) and [4, 8).
struct RowOperands {
  Operand low, high;
};

struct BfloatRows {
  [[gnu::always_inline]] static inline RowOperands load(const uint8_t* first,
                                                        const uint8_t* second) {
    const uint64x2_t a = vreinterpretq_u64_u8(load16(first));
    const uint64x2_t b = vreinterpretq_u64_u8(load16(second));
    return {vreinterpretq_bf16_u64(vzip1q_u64(a, b)), vreinterpretq_bf16_u64(vzip2q_u64(a, b))};
  }
};

// Multiplies halves by a number and adds them to zero, which gives floats four times as fast as the
// conversion instruction. The upper half of a float is the float truncated to bfloat16, which makes
// it smaller by 0.28% on average; the number makes up for that. The squared error is 12% above that
// of rounding; numbers that bfloat16 can hold are exact.
struct HalfRows {
  [[gnu::always_inline]] static inline Operand cut(float32x4_t first, float32x4_t second) {
    return vreinterpretq_bf16_u16(
        vuzp2q_u16(vreinterpretq_u16_f32(first), vreinterpretq_u16_f32(second)));
  }
  [[gnu::always_inline]] static inline RowOperands load(const uint8_t* first,
                                                        const uint8_t* second) {
    const float16x8_t lift = vdupq_n_f16(static_cast<float16_t>(1 + 3 * 0x1p-10F));
    const float32x4_t zero = vdupq_n_f32(0);
    const float16x8_t a = vreinterpretq_f16_u8(load16(first));
    const float16x8_t b = vreinterpretq_f16_u8(load16(second));
    return {cut(vfmlalq_low_f16(zero, a, lift), vfmlalq_low_f16(zero, b, lift)),
            cut(vfmlalq_high_f16(zero, a, lift), vfmlalq_high_f16(zero, b, lift))};
  }
};

// P pairs of activations: P tokens in two parts each (kExact), or 2 * P tokens.
template <class Rows, int P, bool kExact>
struct PairGroup {
  static constexpr int kPairs = P, kTokens = kExact ? P : 2 * P, kWidth = 2 * P;
  static constexpr int kRows = 1, kRowPairs = kStreams / 2;
  // There are more sums than the instruction's latency needs, but few enough for the registers.
  static constexpr int kSums = P <= 4 ? 2 : 1;
  float32x4_t sum[kRowPairs][P][kSums];

  [[gnu::always_inline]] inline void start() {
#pragma GCC unroll 4
    for (int r = 0; r < kRowPairs; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
        for (int i = 0; i < kSums; ++i) sum[r][p][i] = vdupq_n_f32(0);
      }
    }
  }
  [[gnu::always_inline]] inline void add(const uint8_t* const* w, const uint16_t* x) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      RowOperands rows[kRowPairs];
#pragma GCC unroll 4
      for (int r = 0; r < kRowPairs; ++r) {
        rows[r] = Rows::load(w[2 * r] + 16 * v, w[2 * r + 1] + 16 * v);
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const Operand tokens = operand_at(x + (2 * v * P + p) * 8);
#pragma GCC unroll 4
        for (int r = 0; r < kRowPairs; ++r) {
          sum[r][p][0] = vbfmmlaq_f32(sum[r][p][0], rows[r].low, tokens);
        }
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const Operand tokens = operand_at(x + ((2 * v + 1) * P + p) * 8);
#pragma GCC unroll 4
        for (int r = 0; r < kRowPairs; ++r) {
          float32x4_t& to = sum[r][p][kSums - 1];
          to = vbfmmlaq_f32(to, rows[r].high, tokens);
        }
      }
    }
  }
  [[gnu::always_inline]] inline void finish(float (*out)[kStreams]) const {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      float32x4_t first = sum[0][p][0], second = sum[1][p][0];
      if constexpr (kSums == 2) {
        first = vaddq_f32(first, sum[0][p][1]);
        second = vaddq_f32(second, sum[1][p][1]);
      }
      // The order is (row 0, column 0), (0, 1), (1, 0), (1, 1).
      if constexpr (kExact) {
        vst1q_f32(out[p], vpaddq_f32(first, second));
      } else {
        vst1q_f32(out[2 * p], vuzp1q_f32(first, second));
        vst1q_f32(out[2 * p + 1], vuzp2q_f32(first, second));
      }
    }
  }
};

// One token in two parts, on BF16 rows: the dot product needs no operands of two rows. Packed: [k /
// 8][2][8].
struct OneToken {
  static constexpr int kTokens = 1, kRows = 1, kWidth = 2;
  float32x4_t sum[kStreams][4];

  [[gnu::always_inline]] inline void start() {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sum[s][i] = vdupq_n_f32(0);
    }
  }
  [[gnu::always_inline]] inline void add(const uint8_t* const* w, const uint16_t* x) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const Operand weights = vreinterpretq_bf16_u8(load16(w[s] + 16 * v));
        float32x4_t* to = &sum[s][v % 2 * 2];
        to[0] = vbfdotq_f32(to[0], weights, operand_at(x + 16 * v));
        to[1] = vbfdotq_f32(to[1], weights, operand_at(x + 16 * v + 8));
      }
    }
  }
  [[gnu::always_inline]] inline void finish(float (*out)[kStreams]) const {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      out[0][s] =
          vaddvq_f32(vaddq_f32(vaddq_f32(sum[s][0], sum[s][2]), vaddq_f32(sum[s][1], sum[s][3])));
    }
  }
};

// Four columns as bfloat16, and their differences to the floats; 0 where these are NaN.
struct Parts {
  bfloat16x4_t upper, lower;
};
[[gnu::always_inline]] static inline Parts parts_of(float32x4_t x) {
  const bfloat16x4_t upper = vcvt_bf16_f32(x);
  const float32x4_t rest = vsubq_f32(x, vcvt_f32_bf16(upper));
  const uint32x4_t number = vceqq_f32(rest, rest);
  const float32x4_t finite = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(rest), number));
  return {upper, vcvt_bf16_f32(finite)};
}

[[gnu::always_inline]] static inline float32x4_t load_columns(const float* x, int64_t count) {
  if (count >= 4) return vld1q_f32(x);
  float columns[4] = {};
  for (int64_t i = 0; i < count; ++i) columns[i] = x[i];
  return vld1q_f32(columns);
}

static void put_columns(uint16_t* to, bfloat16x4_t columns) {
  vst1_u16(to, vreinterpret_u16_bf16(columns));
}

static int64_t padded_columns(int64_t k) { return (k + kHalfStep - 1) / kHalfStep * kHalfStep; }

static void pack_one(const float* x, int64_t, int64_t, int64_t k, uint16_t* packed,
                     float* factors) {
  factors[0] = 1;
  for (int64_t c = 0; c < padded_columns(k); c += 4) {
    const Parts parts = parts_of(load_columns(x + c, k - c));
    uint16_t* to = packed + c / 8 * 16 + c % 8;
    put_columns(to, parts.upper);
    put_columns(to + 8, parts.lower);
  }
}

// Missing tokens repeat the last one.
template <class Group>
static void pack_pairs(const float* x, int64_t stride, int64_t count, int64_t k, uint16_t* packed,
                       float* factors) {
  constexpr bool kExact = Group::kTokens == Group::kPairs;
  for (int64_t t = 0; t < Group::kTokens; ++t) {
    factors[t] = 1;
    const float* token = x + (t < count ? t : count - 1) * stride;
    uint16_t* to = packed + (kExact ? t * 8 : t * 4);
    for (int64_t c = 0; c < padded_columns(k); c += 4, to += 8 * Group::kPairs) {
      const float32x4_t columns = load_columns(token + c, k - c);
      if constexpr (kExact) {
        const Parts parts = parts_of(columns);
        put_columns(to, parts.upper);
        put_columns(to + 4, parts.lower);
      } else {
        put_columns(to, vcvt_bf16_f32(columns));
      }
    }
  }
}

template <class Group>
constexpr HalfKernel kernel_of() {
  return {.tokens = Group::kTokens,
          .x_width = Group::kWidth,
          .pack = pack_pairs<Group>,
          .multiply = multiply_rows<Group>};
}
constexpr HalfKernel kOne = {.tokens = 1,
                             .x_width = OneToken::kWidth,
                             .pack = pack_one,
                             .multiply = multiply_rows<OneToken>};

constexpr HalfKernel kBfloatKernels[] = {kOne,
                                         kernel_of<PairGroup<BfloatRows, 2, true>>(),
                                         kernel_of<PairGroup<BfloatRows, 3, true>>(),
                                         kernel_of<PairGroup<BfloatRows, 4, true>>(),
                                         kernel_of<PairGroup<BfloatRows, 3, false>>(),
                                         kernel_of<PairGroup<BfloatRows, 4, false>>(),
                                         kernel_of<PairGroup<BfloatRows, 5, false>>(),
                                         kernel_of<PairGroup<BfloatRows, 6, false>>(),
                                         kernel_of<PairGroup<BfloatRows, 8, false>>()};
constexpr HalfKernel kHalfKernels[] = {
    kernel_of<PairGroup<HalfRows, 3, false>>(), kernel_of<PairGroup<HalfRows, 4, false>>(),
    kernel_of<PairGroup<HalfRows, 5, false>>(), kernel_of<PairGroup<HalfRows, 6, false>>(),
    kernel_of<PairGroup<HalfRows, 8, false>>()};

}  // namespace

constinit const HalfKernels kBf16BfmmlaKernels = {kBfloatKernels,
                                                  sizeof(kBfloatKernels) / sizeof(HalfKernel)};
constinit const HalfKernels kF16BfmmlaKernels = {kHalfKernels,
                                                 sizeof(kHalfKernels) / sizeof(HalfKernel), 5};

}  // namespace spillway
