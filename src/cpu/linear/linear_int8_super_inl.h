// SPDX-License-Identifier: Apache-2.0
// The integer kernels of the K types, which have no float arithmetic inside a super-block.
//
// The sub-blocks of 256 columns share the scale d of the weights and the step D of the activations;
// they differ by integers, scale[s] (weights) and multiplier[s] (activations). So 256 columns are
// added up in 32-bit integers,
//     total = sum over s of (integer sum of s) * (scale[s] * multiplier[s])
//     below = sum over s of minimum[s] * (sum of the activations of s, 16 bits)
// and an element's one F32 accumulator takes, for each 256 columns in ascending k,
//     fma(float(total), d * D, .) and then fma(float(below), -dmin * T, .)
// in any batch. If `total` could overflow (see int8_form), the lowest bits of every term are
// rounded off, as sqrdmlah does by itself: this loses far less than rounding the activations.
#pragma once

#include "cpu/linear/linear_int8_inl.h"
#include "cpu/linear/linear_int8_types_k_inl.h"

namespace spillway {
namespace {

// Scales are multiplied by W::kScaleLift, as far as bytes allow, and by 2^7 when they are widened;
// exact ones stay as they are. With multipliers times 2^8 (Int8Form::multiplier_unit) sqrdmlah then
// shifts by 16 minus that lift (Int8Form::integer_unit).
template <class W>
inline constexpr int kScaleShift = W::kExact ? 0 : 7;

template <class W>
[[gnu::always_inline]] static inline int8x16_t lifted_scales(const uint8_t* w, int s, int half) {
  const int8x16_t scales = W::scales(w, s, half);
  if constexpr (W::kScaleLift == 2) return vaddq_s8(scales, scales);
  if constexpr (W::kScaleLift == 4) return vshlq_n_s8(scales, 2);
  return scales;
}

template <class W>
[[gnu::always_inline]] static inline int32x4_t add_scaled(int32x4_t total, int32x4_t sums,
                                                          int32x4_t factor) {
  if constexpr (W::kExact) return vmlaq_s32(total, sums, factor);
  return vqrdmlahq_s32(total, sums, factor);
}

// Adds a super-block's integers to the F32 accumulators.
[[gnu::always_inline]] static inline void add_super(int32x4_t total, float32x4_t scale,
                                                    float32x4_t& sum) {
  sum = vfmaq_f32(sum, vcvtq_f32_s32(total), scale);
}
[[gnu::always_inline]] static inline void sub_super(int32x4_t below, float32x4_t scale,
                                                    float32x4_t& sum) {
  sum = vfmsq_f32(sum, vcvtq_f32_s32(below), scale);
}

// Multiplies the integer sums of sixteen rows of (half of) sub-block kSub by their scales and the
// multiplier.
template <class W, int kSub>
[[gnu::always_inline]] static inline void scale_rows(const int32x4_t sums[4], int8x16_t scales,
                                                     int16x8_t multipliers, int32x4_t total[4]) {
  const int16x8_t low = vshll_n_s8(vget_low_s8(scales), kScaleShift<W>);
  const int16x8_t high = vshll_high_n_s8(scales, kScaleShift<W>);
  total[0] =
      add_scaled<W>(total[0], sums[0], vmull_laneq_s16(vget_low_s16(low), multipliers, kSub));
  total[1] = add_scaled<W>(total[1], sums[1], vmull_high_laneq_s16(low, multipliers, kSub));
  total[2] =
      add_scaled<W>(total[2], sums[2], vmull_laneq_s16(vget_low_s16(high), multipliers, kSub));
  total[3] = add_scaled<W>(total[3], sums[3], vmull_high_laneq_s16(high, multipliers, kSub));
}

// Multiplies sub-blocks kSub and on of a super-block with one token.
template <class Isa, class W, int kSub>
[[gnu::always_inline]] static inline void add_subs(const uint8_t* w, const int8_t* q,
                                                   int16x8_t multipliers, int32x4_t total[4]) {
  const int8x16_t x[4] = {vld1q_s8(q), vld1q_s8(q + 16), vld1q_s8(q + 32), vld1q_s8(q + 48)};
  const auto dot = [](int32x4_t acc, int8x16_t rows, int8x16_t columns) {
    return Isa::template dot<W::kUnsigned>(acc, rows, columns);
  };
  if constexpr (W::kSkewed) {
    int32x4_t pairs[8], sums[4];
    for (int p = 0; p < 8; ++p) pairs[p] = fresh_zero();
    Isa::skewed_dots(W::sub(w, kSub), x, pairs);
    for (int quad = 0; quad < 4; ++quad) {
      sums[quad] = Isa::rows(pairs[2 * quad], pairs[2 * quad + 1]);
    }
    scale_rows<W, kSub>(sums, lifted_scales<W>(w, kSub, 0), multipliers, total);
  } else {
    int32x4_t sums[2][4];  // [half][quad]
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) {
      int32x4_t part[2][2];  // [half][pair]
      for (int pair = 0; pair < 2; ++pair) {
        const Operands first8 = W::quants(w, kSub, quad * 2 + pair, 0);
        const Operands second8 = W::quants(w, kSub, quad * 2 + pair, 1);
        part[0][pair] = dot(dot(fresh_zero(), first8.low, x[0]), second8.low, x[1]);
        part[1][pair] = dot(dot(W::kHalves ? fresh_zero() : part[0][pair], first8.high, x[2]),
                            second8.high, x[3]);
      }
      sums[0][quad] = Isa::rows(part[0][0], part[0][1]);
      sums[1][quad] = Isa::rows(part[1][0], part[1][1]);
      asm volatile("" ::: "memory");  // otherwise g++ unpacks all first and runs out of registers
    }
    if constexpr (W::kHalves) {
      scale_rows<W, kSub>(sums[0], lifted_scales<W>(w, kSub, 0), multipliers, total);
    }
    scale_rows<W, kSub>(sums[1], lifted_scales<W>(w, kSub, W::kHalves ? 1 : 0), multipliers, total);
  }
  if constexpr (kSub + 1 < 8) add_subs<Isa, W, kSub + 1>(w, q + 64, multipliers, total);
}

// Adds up what minima kIndex and on take away from sixteen rows.
template <class W, int kIndex>
[[gnu::always_inline]] static inline void add_minima(const uint8_t* w, const int16_t* sums,
                                                     int32x4_t below[4]) {
  constexpr int kParts = W::kHalves ? 2 : 1, kLane = kIndex % 8;
  const int16x8_t eight = vld1q_s16(sums + kIndex / 8 * 8);
  const int8x16_t minima = W::minima(w, kIndex / kParts, kIndex % kParts);
  const int16x8_t low = vmovl_s8(vget_low_s8(minima)), high = vmovl_high_s8(minima);
  below[0] = vmlal_laneq_s16(below[0], vget_low_s16(low), eight, kLane);
  below[1] = vmlal_high_laneq_s16(below[1], low, eight, kLane);
  below[2] = vmlal_laneq_s16(below[2], vget_low_s16(high), eight, kLane);
  below[3] = vmlal_high_laneq_s16(below[3], high, eight, kLane);
  if constexpr (kIndex + 1 < 8 * kParts) add_minima<W, kIndex + 1>(w, sums, below);
}

// Multiplies one token with kStreams groups at first, first + step, ..., a super-block of each in
// rotation.
template <class Isa, class W, int kStreams>
void one_token_super(const Int8Args& a, int64_t first, int64_t step) {
  float32x4_t sum[kStreams][4];
  for (int i = 0; i < kStreams; ++i) {
    for (int quad = 0; quad < 4; ++quad) {
      sum[i][quad] = start_rows(a, a.out, (first + i * step) * 16 + quad * 4);
    }
  }
  const uint8_t* w = a.w + first * a.group_bytes;
  const int8_t* q = a.q;
  for (int64_t k = 0; k < a.k; k += 256, w += W::kBytes, q += 512) {
    const Int8Super& x = a.super[k / 256];
    for (int i = 0; i < kStreams; ++i) {
      const uint8_t* block = w + i * step * a.group_bytes;
      int32x4_t total[4] = {}, below[4] = {};
      add_subs<Isa, W, 0>(block, q, vld1q_s16(x.multiplier), total);
      if constexpr (W::kMinima) add_minima<W, 0>(block, x.sum, below);
      const float32x4_t dx = vld1q_f32(x.d), tx = vld1q_f32(x.t);
      for (int quad = 0; quad < 4; ++quad) {
        add_super(total[quad], vmulq_f32(W::d(block, quad), dx), sum[i][quad]);
        if constexpr (W::kMinima) {
          sub_super(below[quad], vmulq_f32(W::dmin(block, quad), tx), sum[i][quad]);
        }
      }
    }
  }
  for (int i = 0; i < kStreams; ++i) {
    for (int quad = 0; quad < 4; ++quad) {
      vst1q_f32(a.out + (first + i * step) * 16 + quad * 4, sum[i][quad]);
    }
  }
}

template <class Isa, class Source, int kPairs>
struct SuperTileSums;

// A panel of a type, unpacked once for many tokens: for each sub-block bytes, then scales and
// minima of row pairs as 32-bit numbers; after the eight of them d and dmin.
template <class W>
struct SuperPanel {
  static constexpr bool kMinima = W::kMinima, kUnsigned = W::kUnsigned, kExact = W::kExact;
  static constexpr int kParts = W::kHalves ? 2 : 1;
  static constexpr int kMinimaAt = 512 + kParts * 128;
  static constexpr int kSubBytes = kMinimaAt + (kMinima ? kParts * 128 : 0);
  static constexpr int kBlockBytes = 8 * kSubBytes + 128 + (kMinima ? 128 : 0);
  static_assert(kBlockBytes * (kInt8PanelDepth / 256) <= kInt8PanelBytes);
  template <class Isa, int kPairs>
  using Sums = SuperTileSums<Isa, SuperPanel, kPairs>;

  [[gnu::always_inline]] static inline int32x4_t scale(const uint8_t* sub, int part, int p) {
    return vreinterpretq_s32_u8(vld1q_u8(sub + 512 + (part * 8 + p) * 16));
  }
  [[gnu::always_inline]] static inline int32x4_t minimum(const uint8_t* sub, int part, int p) {
    return vreinterpretq_s32_u8(vld1q_u8(sub + kMinimaAt + (part * 8 + p) * 16));
  }
  [[gnu::always_inline]] static inline float32x4_t d(const uint8_t* b, int p) {
    return vreinterpretq_f32_u8(vld1q_u8(b + 8 * kSubBytes + p * 16));
  }
  [[gnu::always_inline]] static inline float32x4_t dmin(const uint8_t* b, int p) {
    return vreinterpretq_f32_u8(vld1q_u8(b + 8 * kSubBytes + 128 + p * 16));
  }

  // Writes sixteen numbers as 32-bit ones, each twice.
  template <int kShift>
  [[gnu::always_inline]] static inline void fill_pairs(int8x16_t numbers, uint8_t* to) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int16x8_t eight =
          half == 0 ? vshll_n_s8(vget_low_s8(numbers), kShift) : vshll_high_n_s8(numbers, kShift);
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const int32x4_t quad = i == 0 ? vmovl_s16(vget_low_s16(eight)) : vmovl_high_s16(eight);
        uint8_t* at = to + (half * 4 + i * 2) * 16;
        vst1q_u8(at, vreinterpretq_u8_s32(pair_of(quad, 0)));
        vst1q_u8(at + 16, vreinterpretq_u8_s32(pair_of(quad, 1)));
      }
    }
  }
  static void fill(const uint8_t* from, uint8_t* to) {
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s, to += kSubBytes) {
      fill_quants<W>(from, s, to);
      for (int part = 0; part < kParts; ++part) {
        fill_pairs<kScaleShift<W>>(lifted_scales<W>(from, s, part), to + 512 + part * 128);
        if constexpr (kMinima) {
          fill_pairs<0>(W::minima(from, s, part), to + kMinimaAt + part * 128);
        }
      }
    }
    for (int p = 0; p < 8; ++p) {
      vst1q_u8(to + p * 16, vreinterpretq_u8_f32(pair_of(W::d(from, p / 2), p)));
      if constexpr (kMinima) {
        vst1q_u8(to + 128 + p * 16, vreinterpretq_u8_f32(pair_of(W::dmin(from, p / 2), p)));
      }
    }
  }
};

// Multiplies eight rows (pairs first_pair..) of a group with kPairs token pairs, a super-block in
// one step.
template <class Isa, class Source, int kPairs>
struct SuperTileSums {
  using Tile = typename Isa::Tile;
  static constexpr int kParts = Source::kParts;

  const uint8_t* w;
  const int8_t* q;
  const float *d, *m;
  const Int8Super* super;
  int first_pair;
  int64_t pair_bytes, pair_floats, pair_supers;  // from one token pair to the next
  float32x4_t sum[4][kPairs];

  // Adds part `part` of sub-block s, the products of `steps` times eight columns.
  [[gnu::always_inline]] inline void add_part(const uint8_t* sub, int s, int part,
                                              int32x4_t total[4][kPairs]) {
    Tile products[4][kPairs] = {};
#pragma GCC unroll 4
    for (int step = part * 2; step < (kParts == 2 ? part * 2 + 2 : 4); ++step) {
      typename Isa::Columns x[kPairs];
      for (int j = 0; j < kPairs; ++j) {
        x[j] = Isa::columns(vld1q_s8(q + s * 64 + j * pair_bytes + step * 16));
      }
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) {
        const Operands both = filled_quants(sub, first_pair + p, step % 2);
        for (int j = 0; j < kPairs; ++j) {
          Isa::template multiply<Source::kUnsigned>(products[p][j], step < 2 ? both.low : both.high,
                                                    x[j]);
        }
      }
    }
    for (int j = 0; j < kPairs; ++j) {
      const int32x4_t multiplier = vreinterpretq_s32_f32(vld1q_f32(d + s * 4 + j * pair_floats));
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) {
        const int32x4_t factor = vmulq_s32(Source::scale(sub, part, first_pair + p), multiplier);
        total[p][j] = add_scaled<Source>(total[p][j], Isa::sums(products[p][j]), factor);
      }
    }
  }

  [[gnu::always_inline]] inline int32x4_t activation_sums(int s, int part, int j) const {
    const float* at = m + s * 4 + j * pair_floats;
    if constexpr (kParts == 1) return vreinterpretq_s32_f32(vld1q_f32(at));
    const float32x2_t both = vld1_f32(at + part * 2);
    return vreinterpretq_s32_f32(vcombine_f32(both, both));
  }

  [[gnu::always_inline]] inline void add_block() {
    int32x4_t total[4][kPairs] = {};
    for (int s = 0; s < 8; ++s) {
      for (int part = 0; part < kParts; ++part) {
        add_part(w + s * Source::kSubBytes, s, part, total);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      for (int j = 0; j < kPairs; ++j) {
        const float32x4_t dx = vld1q_f32(super[j * pair_supers].d);
        add_super(total[p][j], vmulq_f32(Source::d(w, first_pair + p), dx), sum[p][j]);
      }
    }
    if constexpr (Source::kMinima) take_minima();
  }

  [[gnu::always_inline]] inline void take_minima() {
    int32x4_t below[4][kPairs] = {};
    for (int s = 0; s < 8; ++s) {
      for (int part = 0; part < kParts; ++part) {
        for (int j = 0; j < kPairs; ++j) {
          const int32x4_t x = activation_sums(s, part, j);
#pragma GCC unroll 4
          for (int p = 0; p < 4; ++p) {
            const uint8_t* sub = w + s * Source::kSubBytes;
            below[p][j] = vmlaq_s32(below[p][j], Source::minimum(sub, part, first_pair + p), x);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      for (int j = 0; j < kPairs; ++j) {
        const float32x4_t tx = vld1q_f32(super[j * pair_supers].t);
        sub_super(below[p][j], vmulq_f32(Source::dmin(w, first_pair + p), tx), sum[p][j]);
      }
    }
  }

  [[gnu::always_inline]] inline void add_blocks(int64_t count) {
    for (int64_t i = 0; i < count; i += 8) {
      add_block();
      w += Source::kBlockBytes;
      q += 8 * 64;
      d += 8 * 4;
      m += 8 * 4;
      ++super;
    }
  }
};

template <class Isa, class W>
void run_super_groups(const Int8Args& a, int64_t first, int64_t last, uint8_t* panel) {
  if (a.tokens > 1) return many_tokens<Isa, W, SuperPanel<W>>(a, first, last, panel);
  constexpr int kStreams = 4;
  const int64_t step = (last - first) / kStreams;
  for (int64_t i = 0; i < step; ++i) one_token_super<Isa, W, kStreams>(a, first + i, step);
  for (int64_t i = first + step * kStreams; i < last; ++i) one_token_super<Isa, W, 1>(a, i, 0);
}

}  // namespace
}  // namespace spillway
