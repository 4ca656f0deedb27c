// SPDX-License-Identifier: Apache-2.0
// Converts the packed K types (tensor/packed_layout.h) to operands of 8-bit instructions.
//
// Blocks are super-blocks of 256 columns, whose sub-blocks' scales and minima are integers. For a
// type S and a pointer to one of its blocks, in addition to those of linear_int8_types_inl.h:
//   kExact                  whether sums of 256 columns fit 32 bits (Int8Form::multipliers)
//   kScaleLift              a power of two; scales times it still fit 8 bits
//   scales, minima(b, s, half)  those of sub-block s, of sixteen rows; half: which 16 of its
//   columns d, dmin(b, quad)        what these are multiplied by, for rows 4 quad..
#pragma once

#include "cpu/linear/linear_int8_types_inl.h"

namespace spillway {
namespace {

// Returns the six-bit numbers of sub-block s, of sixteen rows side by side.
[[gnu::always_inline]] static inline int8x16_t six_bits(const uint8_t* six, int s) {
  const uint8x16_t nibbles = vld1q_u8(six + s % 4 * 16);
  const uint8x16_t low = s < 4 ? vandq_u8(nibbles, vdupq_n_u8(15)) : vshrq_n_u8(nibbles, 4);
  uint8x16_t top = vld1q_u8(six + 64 + s / 4 * 16);
  if (s % 4 == 0) top = vshlq_n_u8(top, 4);
  if (s % 4 == 1) top = vshlq_n_u8(top, 2);
  if (s % 4 == 3) top = vshrq_n_u8(top, 2);
  return vreinterpretq_s8_u8(vbslq_u8(vdupq_n_u8(0x30), top, low));
}

template <int kSubBytes, bool kWide>
struct TypeK45 {
  static constexpr bool kFifth = kSubBytes > 256;
  static constexpr int kSubs = 8, kBytes = 64 + 192 + kSubs * kSubBytes;
  static constexpr float kLift = !kWide ? 1 : kFifth ? 8 : 16;
  static constexpr int kScaleLift = kWide ? 2 : 1;
  static constexpr bool kMinima = true, kHalves = false, kUnsigned = kWide, kExact = !kWide;
  static constexpr bool kSkewed = kWide && !kFifth;
  [[gnu::always_inline]] static inline const uint8_t* sub(const uint8_t* b, int s) {
    return b + 256 + s * kSubBytes;
  }
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int s, int p, int h) {
    if constexpr (!kFifth) {
      return nibbles_at<kSkewed>(sub(b, s), p, h);
    } else if constexpr (kWide) {
      return Fifth::top_values<true>(sub(b, s), p, h);
    } else {
      return Fifth::unsigned_values(sub(b, s), p, h);
    }
  }
  [[gnu::always_inline]] static inline int8x16_t scales(const uint8_t* b, int s, int) {
    return six_bits(b + 64, s);
  }
  [[gnu::always_inline]] static inline int8x16_t minima(const uint8_t* b, int s, int) {
    return six_bits(b + 160, s);
  }
  [[gnu::always_inline]] static inline float32x4_t d(const uint8_t* b, int quad) {
    return halves_at(b, quad);
  }
  [[gnu::always_inline]] static inline float32x4_t dmin(const uint8_t* b, int quad) {
    return halves_at(b + 32, quad);
  }
};

using PackedQ4_K = TypeK45<256, false>;
using PackedQ5_K = TypeK45<Fifth::kBytes, false>;

struct PackedQ6_K {
  static constexpr int kBytes = 16 * 210, kSubs = 8, kSubBytes = 256 + 128;
  static constexpr float kLift = 4;
  static constexpr int kScaleLift = 1;
  static constexpr bool kMinima = false, kHalves = true, kUnsigned = false, kExact = false;
  static constexpr bool kSkewed = false;
  // Gives two's complement at the top of the byte. Inserting shifts save most of the masking.
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int s, int p, int h) {
    const uint8_t* sub = b + 32 + 256 + s * kSubBytes;
    const uint8x16_t v = vld1q_u8(sub + (p * 2 + h) * 16), tops = vld1q_u8(sub + 256 + p * 16);
    const uint8x16_t four_times = times_power(v, 4);
    const uint8x16_t low = h == 0 ? vsliq_n_u8(four_times, tops, 6)
                                  : vbslq_u8(vdupq_n_u8(0xc0), vshlq_n_u8(tops, 2), four_times);
    const uint8x16_t above = h == 0 ? times_power(tops, 16) : fresh_load(sub + 256 + p * 16);
    const uint8x16_t high = vsriq_n_u8(above, v, 2);
    return {vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(vandq_u8(high, vdupq_n_u8(0xfc)))};
  }
  [[gnu::always_inline]] static inline int8x16_t scales(const uint8_t* b, int s, int half) {
    return vreinterpretq_s8_u8(vld1q_u8(b + 32 + (s * 2 + half) * 16));
  }
  [[gnu::always_inline]] static inline float32x4_t d(const uint8_t* b, int quad) {
    return halves_at(b, quad);
  }
};

struct PackedQ3_K {
  static constexpr int kBytes = 16 * 110, kSubs = 8, kSubBytes = 128 + 64;
  static constexpr float kLift = 32;
  static constexpr int kScaleLift = 4;
  static constexpr bool kMinima = false, kHalves = true, kUnsigned = false, kExact = false;
  static constexpr bool kSkewed = false;
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int s, int p, int h) {
    const uint8_t* sub = b + 32 + 192 + s * kSubBytes;
    const uint8x16_t two = vld1q_u8(sub + p * 16);
    const uint8x16_t thirds = vld1q_u8(sub + 128 + p / 2 * 16);
    const int at = p % 2 * 4 + h * 2;
    // The two bits go to bits 5 and 6, the third above them.
    const uint8x16_t top = vdupq_n_u8(0x80), mask = vdupq_n_u8(0xe0);
    const uint8x16_t low = vbslq_u8(top, times_power(thirds, 0x80 >> at),
                                    h == 0 ? vshlq_n_u8(two, 5) : vaddq_u8(two, two));
    const uint8x16_t above = shift_left_constant(thirds, 6 - at);
    const uint8x16_t high =
        h == 0 ? vbslq_u8(top, above, vshlq_n_u8(two, 3)) : vsriq_n_u8(above, two, 1);
    return {vreinterpretq_s8_u8(h == 0 ? low : vandq_u8(low, mask)),
            vreinterpretq_s8_u8(vandq_u8(high, mask))};
  }
  [[gnu::always_inline]] static inline int8x16_t scales(const uint8_t* b, int s, int half) {
    return vsubq_s8(six_bits(b + 32 + s / 4 * 96, s % 4 * 2 + half), vdupq_n_s8(32));
  }
  [[gnu::always_inline]] static inline float32x4_t d(const uint8_t* b, int quad) {
    return halves_at(b, quad);
  }
};

struct PackedQ2_K {
  static constexpr int kBytes = 16 * 84, kSubs = 8, kSubBytes = 128;
  static constexpr float kLift = 1;
  static constexpr int kScaleLift = 1;
  static constexpr bool kMinima = true, kHalves = true, kUnsigned = false, kExact = true;
  static constexpr bool kSkewed = false;
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int s, int p, int h) {
    const uint8x16_t v = vld1q_u8(b + 64 + 256 + s * kSubBytes + p * 16), mask = vdupq_n_u8(3);
    const uint8x16_t low = vandq_u8(h == 0 ? v : vshrq_n_u8(v, 4), mask);
    const uint8x16_t high = h == 0 ? vandq_u8(vshrq_n_u8(v, 2), mask) : vshrq_n_u8(v, 6);
    return {vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)};
  }
  [[gnu::always_inline]] static inline int8x16_t scales(const uint8_t* b, int s, int half) {
    const uint8x16_t both = vld1q_u8(b + 64 + (s * 2 + half) * 16);
    return vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
  }
  [[gnu::always_inline]] static inline int8x16_t minima(const uint8_t* b, int s, int half) {
    return vreinterpretq_s8_u8(vshrq_n_u8(vld1q_u8(b + 64 + (s * 2 + half) * 16), 4));
  }
  [[gnu::always_inline]] static inline float32x4_t d(const uint8_t* b, int quad) {
    return halves_at(b, quad);
  }
  [[gnu::always_inline]] static inline float32x4_t dmin(const uint8_t* b, int quad) {
    return halves_at(b + 32, quad);
  }
};

}  // namespace
}  // namespace spillway
