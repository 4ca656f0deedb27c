// SPDX-License-Identifier: Apache-2.0
// Converts each packed type (tensor/packed_layout.h) to operands of 8-bit instructions.
//
// For a source S and a pointer to one of its blocks:
//   kBytes, kSubs       bytes and sub-blocks of 32 columns
//   kLift, kUnsigned    the factor of quants, and whether they are unsigned bytes
//   kMinima             whether values have a minimum
//   sub(b, s)           where the nibbles of sub-block s are, if it has no more bits
//   quants(b, s, p, h)  columns 8h.. and 16 + 8h.. of rows 2p, 2p + 1 of sub-block s
//   scale, minimum(b, s, quad)  those of rows 4 quad..
// Signed kinds give q times a power of two (Int8Form::lift), which the activations' scales take
// back: it costs no instruction to leave a two's complement number at the top of its byte.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace spillway {
namespace {

struct Operands {
  int8x16_t low, high;  // columns 8h to 8h + 7, and sixteen further
};

[[gnu::always_inline]] static inline float32x4_t halves_at(const uint8_t* halves, int quad) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(halves + 8 * quad)));
}

// These are immediate shifts, by a number that is a constant once everything is inlined.
[[gnu::always_inline]] static inline uint8x16_t shift_right_constant(uint8x16_t v, int bits) {
  switch (bits) {
    case 0:
      return v;
    case 1:
      return vshrq_n_u8(v, 1);
    case 2:
      return vshrq_n_u8(v, 2);
    case 3:
      return vshrq_n_u8(v, 3);
    case 4:
      return vshrq_n_u8(v, 4);
    case 5:
      return vshrq_n_u8(v, 5);
    case 6:
      return vshrq_n_u8(v, 6);
    default:
      return vshrq_n_u8(v, 7);
  }
}

[[gnu::always_inline]] static inline uint8x16_t shift_left_constant(uint8x16_t v, int bits) {
  switch (bits) {
    case 0:
      return v;
    case 2:
      return vshlq_n_u8(v, 2);
    case 4:
      return vshlq_n_u8(v, 4);
    default:
      return vshlq_n_u8(v, 6);
  }
}

// Computes v << n as a product with 2^n. Shifts use half of the pipelines and products the other
// half, so that a kernel with many shifts needs both. It is assembly because g++ would make it a
// shift.
[[gnu::always_inline]] static inline uint8x16_t times_power(uint8x16_t v, uint8_t power) {
  uint8x16_t product;
  asm("mul %0.16b, %1.16b, %2.16b" : "=w"(product) : "w"(v), "w"(vdupq_n_u8(power)));
  return product;
}

// Loads an operand that an instruction overwrites: g++ would load once and copy, which costs as
// much as a product.
[[gnu::always_inline]] static inline uint8x16_t fresh_load(const uint8_t* at) {
  uint8x16_t v;
  asm volatile("ldr %q0, %1" : "=w"(v) : "m"(*reinterpret_cast<const uint8_t(*)[16]>(at)));
  return v;
}

// Returns nibbles as they are, 0 to 15.
[[gnu::always_inline]] static inline Operands unsigned_nibbles(const uint8_t* sub, int p, int h) {
  const uint8x16_t v = vld1q_u8(sub + (p * 2 + h) * 16);
  return {vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8(v, 4))};
}

template <bool kSkewed>
[[gnu::always_inline]] static inline Operands nibbles_at(const uint8_t* sub, int p, int h) {
  if constexpr (!kSkewed) return unsigned_nibbles(sub, p, h);
  const uint8x16_t v = vld1q_u8(sub + (p * 2 + h) * 16);
  return {vreinterpretq_s8_u8(vshlq_n_u8(v, 4)), vreinterpretq_s8_u8(v)};
}

// Joins nibbles with the bits above them: the low four bits of each byte come from the pieces, the
// rest from `high`, whose further bits are above these; the caller cuts them off.
[[gnu::always_inline]] static inline void join_bits(const uint8_t* sub, int p, int h,
                                                    uint8x16_t high, int high_bits, uint8x16_t& low,
                                                    uint8x16_t& top) {
  const uint8x16_t v = vld1q_u8(sub + (p * 2 + h) * 16);
  low = vsliq_n_u8(v, high, 4);
  top = vsliq_n_u8(vshrq_n_u8(v, 4), shift_right_constant(high, high_bits), 4);
}

struct Fifth {
  static constexpr int kBytes = 256 + 64;
  // Puts values at the top of the byte, zeros below. Inserting shifts save most of the masking.
  // kBalanced is for kernels that have registers for the constants, see times_power().
  template <bool kBalanced>
  [[gnu::always_inline]] static inline Operands top_values(const uint8_t* sub, int p, int h) {
    const uint8x16_t v = vld1q_u8(sub + (p * 2 + h) * 16);
    const uint8x16_t fifths = vld1q_u8(sub + 256 + p / 2 * 16);
    const int at = p % 2 * 4 + h * 2;
    const uint8x16_t eight_times = vshlq_n_u8(v, 3);
    const uint8x16_t low =
        kBalanced ? vbslq_u8(vdupq_n_u8(0x80), times_power(fifths, 0x80 >> at), eight_times)
                  : vsliq_n_u8(eight_times, shift_right_constant(fifths, at), 7);
    const uint8x16_t high = vsriq_n_u8(shift_left_constant(fifths, 6 - at), v, 1);
    return {vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(vandq_u8(high, vdupq_n_u8(0xf8)))};
  }
  [[gnu::always_inline]] static inline Operands unsigned_values(const uint8_t* sub, int p, int h) {
    const uint8x16_t high = vld1q_u8(sub + 256 + p / 2 * 16), mask = vdupq_n_u8(31);
    uint8x16_t low, top;
    join_bits(sub, p, h, shift_right_constant(high, p % 2 * 4 + h * 2), 1, low, top);
    return {vreinterpretq_s8_u8(vandq_u8(low, mask)), vreinterpretq_s8_u8(vandq_u8(top, mask))};
  }
};

template <bool kSkewed>
struct TypeQ4_0 {
  static constexpr int kBytes = 16 * 18, kSubs = 1;
  static constexpr float kLift = 16;
  static constexpr bool kMinima = false, kUnsigned = kSkewed, kOffset = kSkewed;
  [[gnu::always_inline]] static inline const uint8_t* sub(const uint8_t* b, int) { return b + 32; }
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int, int p, int h) {
    if constexpr (kSkewed) return nibbles_at<true>(sub(b, 0), p, h);
    const uint8x16_t v = vld1q_u8(b + 32 + (p * 2 + h) * 16), middle = vdupq_n_u8(0x80);
    return {vreinterpretq_s8_u8(veorq_u8(vshlq_n_u8(v, 4), middle)),
            vreinterpretq_s8_u8(veorq_u8(vandq_u8(v, vdupq_n_u8(0xf0)), middle))};
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
};
using PackedQ4_0 = TypeQ4_0<false>;

template <bool kSkewed>
struct TypeQ4_1 {
  static constexpr int kBytes = 16 * 20, kSubs = 1;
  static constexpr float kLift = kSkewed ? 16 : 1;
  static constexpr bool kMinima = true, kUnsigned = kSkewed;
  [[gnu::always_inline]] static inline const uint8_t* sub(const uint8_t* b, int) { return b + 64; }
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int, int p, int h) {
    return nibbles_at<kSkewed>(sub(b, 0), p, h);
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
  [[gnu::always_inline]] static inline float32x4_t minimum(const uint8_t* b, int, int quad) {
    return halves_at(b + 32, quad);
  }
};

using PackedQ4_1 = TypeQ4_1<false>;

struct PackedQ5_0 {
  static constexpr int kBytes = 16 * 22, kSubs = 1;
  static constexpr float kLift = 8;
  static constexpr bool kMinima = false, kUnsigned = false;
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int, int p, int h) {
    return Fifth::top_values<false>(b + 32, p, h);
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
};

struct PackedQ5_1 {
  static constexpr int kBytes = 16 * 24, kSubs = 1;
  static constexpr float kLift = 1;
  static constexpr bool kMinima = true, kUnsigned = false;
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int, int p, int h) {
    return Fifth::unsigned_values(b + 64, p, h);
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
  [[gnu::always_inline]] static inline float32x4_t minimum(const uint8_t* b, int, int quad) {
    return halves_at(b + 32, quad);
  }
};

struct PackedQ8_0 {
  static constexpr int kBytes = 16 * 34, kSubs = 1;
  static constexpr float kLift = 1;
  static constexpr bool kMinima = false, kUnsigned = false;
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int, int p, int h) {
    const uint8_t* at = b + 32 + (p * 4 + h) * 16;
    return {vreinterpretq_s8_u8(vld1q_u8(at)), vreinterpretq_s8_u8(vld1q_u8(at + 32))};
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
};

template <bool kSkewed>
struct TypeG4 {
  static constexpr int kBytes = 16 * 36, kSubs = 2;
  static constexpr float kLift = kSkewed ? 16 : 1;
  static constexpr bool kMinima = true, kUnsigned = kSkewed;
  [[gnu::always_inline]] static inline const uint8_t* sub(const uint8_t* b, int s) {
    return b + 64 + s * 256;
  }
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int s, int p, int h) {
    return nibbles_at<kSkewed>(sub(b, s), p, h);
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
  [[gnu::always_inline]] static inline float32x4_t minimum(const uint8_t* b, int, int quad) {
    return halves_at(b + 32, quad);
  }
};
using PackedG4 = TypeG4<false>;

}  // namespace
}  // namespace spillway
