// SPDX-License-Identifier: Apache-2.0
// How each packed type (tensor/packed_layout.h) becomes operands of 8-bit instructions.
//
// For a source S and a pointer to one of its blocks:
//   kBytes, kSubs       bytes and sub-blocks of 32 columns
//   kLift, kUnsigned    what quants are multiplied by, whether they are unsigned bytes
//   kMinima, kHalves    whether values have a minimum, whether each 16 columns have a scale
//   sub(b, s)           where the nibbles of sub-block s are, if it has no more bits
//   quants(b, s, p, h)  columns 8h.. and 16 + 8h.. of rows 2p, 2p + 1 of sub-block s
//   scale, minimum(b, s, quad)  of rows 4 quad..
//   half_scale(b, s, half, quad)
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

[[gnu::always_inline]] static inline uint32x4_t widen_quad(uint8x16_t bytes, int quad) {
  const uint16x8_t wide = quad < 2 ? vmovl_u8(vget_low_u8(bytes)) : vmovl_high_u8(bytes);
  return quad % 2 == 0 ? vmovl_u16(vget_low_u16(wide)) : vmovl_high_u16(wide);
}
[[gnu::always_inline]] static inline int32x4_t widen_quad(int8x16_t bytes, int quad) {
  const int16x8_t wide = quad < 2 ? vmovl_s8(vget_low_s8(bytes)) : vmovl_high_s8(bytes);
  return quad % 2 == 0 ? vmovl_s16(vget_low_s16(wide)) : vmovl_high_s16(wide);
}

[[gnu::always_inline]] static inline uint8x16_t shift_right(uint8x16_t v, int bits) {
  return vshlq_u8(v, vdupq_n_s8(static_cast<int8_t>(-bits)));
}

// The same for a number that is a constant once everything is inlined: an immediate shift.
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

// Nibbles as they are, 0 to 15.
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

// Nibbles with the bits above them: low four bits of each byte from the pieces, the rest from
// `high`, whose further bits are above these; the caller cuts them off.
[[gnu::always_inline]] static inline void join_bits(const uint8_t* sub, int p, int h,
                                                    uint8x16_t high, int high_bits, uint8x16_t& low,
                                                    uint8x16_t& top) {
  const uint8x16_t v = vld1q_u8(sub + (p * 2 + h) * 16);
  low = vsliq_n_u8(v, high, 4);
  top = vsliq_n_u8(vshrq_n_u8(v, 4), shift_right_constant(high, high_bits), 4);
}

struct Fifth {
  static constexpr int kBytes = 256 + 64;
  [[gnu::always_inline]] static inline void join(const uint8_t* sub, int p, int h, uint8x16_t& low,
                                                 uint8x16_t& top) {
    const uint8x16_t high = vld1q_u8(sub + 256 + p / 2 * 16);
    join_bits(sub, p, h, shift_right_constant(high, p % 2 * 4 + h * 2), 1, low, top);
  }
  [[gnu::always_inline]] static inline Operands unsigned_values(const uint8_t* sub, int p, int h) {
    uint8x16_t low, top;
    join(sub, p, h, low, top);
    const uint8x16_t mask = vdupq_n_u8(31);
    return {vreinterpretq_s8_u8(vandq_u8(low, mask)), vreinterpretq_s8_u8(vandq_u8(top, mask))};
  }
};

template <bool kSkewed>
struct TypeQ4_0 {
  static constexpr int kBytes = 16 * 18, kSubs = 1;
  static constexpr float kLift = 16;
  static constexpr bool kMinima = false, kHalves = false, kUnsigned = kSkewed, kOffset = kSkewed;
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
  static constexpr bool kMinima = true, kHalves = false, kUnsigned = kSkewed;
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
  static constexpr bool kMinima = false, kHalves = false, kUnsigned = false;
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int, int p, int h) {
    uint8x16_t low, top;
    Fifth::join(b + 32, p, h, low, top);
    return {vreinterpretq_s8_u8(vshlq_n_u8(low, 3)), vreinterpretq_s8_u8(vshlq_n_u8(top, 3))};
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
};

struct PackedQ5_1 {
  static constexpr int kBytes = 16 * 24, kSubs = 1;
  static constexpr float kLift = 1;
  static constexpr bool kMinima = true, kHalves = false, kUnsigned = false;
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
  static constexpr bool kMinima = false, kHalves = false, kUnsigned = false;
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int, int p, int h) {
    const uint8_t* at = b + 32 + (p * 4 + h) * 16;
    return {vreinterpretq_s8_u8(vld1q_u8(at)), vreinterpretq_s8_u8(vld1q_u8(at + 32))};
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
};

// Six-bit numbers of sub-block s, sixteen rows abreast.
[[gnu::always_inline]] static inline uint8x16_t six_bits(const uint8_t* six, int s) {
  const uint8x16_t low =
      vandq_u8(shift_right(vld1q_u8(six + s % 4 * 16), s / 4 * 4), vdupq_n_u8(15));
  const uint8x16_t top = shift_right(vld1q_u8(six + 64 + s / 4 * 16), s % 4 * 2);
  return vandq_u8(vsliq_n_u8(low, top, 4), vdupq_n_u8(63));
}

template <int kSubBytes, bool kSkewed>
struct TypeK45 {
  static constexpr int kSubs = 8, kBytes = 64 + 192 + kSubs * kSubBytes;
  static constexpr float kLift = kSkewed ? 16 : 1;
  static constexpr bool kMinima = true, kHalves = false, kUnsigned = kSkewed;
  [[gnu::always_inline]] static inline const uint8_t* sub(const uint8_t* b, int s) {
    return b + 256 + s * kSubBytes;
  }
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int s, int p, int h) {
    if constexpr (kSubBytes == 256) {
      return nibbles_at<kSkewed>(sub(b, s), p, h);
    } else {
      return Fifth::unsigned_values(sub(b, s), p, h);
    }
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int s, int quad) {
    return vmulq_f32(halves_at(b, quad), vcvtq_f32_u32(widen_quad(six_bits(b + 64, s), quad)));
  }
  [[gnu::always_inline]] static inline float32x4_t minimum(const uint8_t* b, int s, int quad) {
    return vmulq_f32(vnegq_f32(halves_at(b + 32, quad)),
                     vcvtq_f32_u32(widen_quad(six_bits(b + 160, s), quad)));
  }
};
using PackedQ4_K = TypeK45<256, false>;
using PackedQ5_K = TypeK45<Fifth::kBytes, false>;

struct PackedQ6_K {
  static constexpr int kBytes = 16 * 210, kSubs = 8, kSubBytes = 256 + 128;
  static constexpr float kLift = 4;
  static constexpr bool kMinima = false, kHalves = true, kUnsigned = false;
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int s, int p, int h) {
    const uint8_t* sub = b + 32 + 256 + s * kSubBytes;
    uint8x16_t low, top;
    join_bits(sub, p, h, shift_right_constant(vld1q_u8(sub + 256 + p * 16), h * 4), 2, low, top);
    return {vreinterpretq_s8_u8(vshlq_n_u8(low, 2)), vreinterpretq_s8_u8(vshlq_n_u8(top, 2))};
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
  [[gnu::always_inline]] static inline int32x4_t half_scale(const uint8_t* b, int s, int half,
                                                            int quad) {
    return widen_quad(vreinterpretq_s8_u8(vld1q_u8(b + 32 + (s * 2 + half) * 16)), quad);
  }
};

struct PackedQ3_K {
  static constexpr int kBytes = 16 * 110, kSubs = 8, kSubBytes = 128 + 64;
  static constexpr float kLift = 32;
  static constexpr bool kMinima = false, kHalves = true, kUnsigned = false;
  [[gnu::always_inline]] static inline Operands quants(const uint8_t* b, int s, int p, int h) {
    const uint8_t* sub = b + 32 + 192 + s * kSubBytes;
    const uint8x16_t two = vld1q_u8(sub + p * 16);
    const uint8x16_t third =
        shift_right_constant(vld1q_u8(sub + 128 + p / 2 * 16), p % 2 * 4 + h * 2);
    // The two bits go to 5 and 6, the third on top of them.
    const uint8x16_t low = h == 0 ? vshlq_n_u8(two, 5) : vshlq_n_u8(two, 1);
    const uint8x16_t top = h == 0 ? vshlq_n_u8(two, 3) : vshrq_n_u8(two, 1);
    const uint8x16_t mask = vdupq_n_u8(0xe0);
    return {vreinterpretq_s8_u8(vandq_u8(vsliq_n_u8(low, third, 7), mask)),
            vreinterpretq_s8_u8(vandq_u8(vsliq_n_u8(top, vshrq_n_u8(third, 1), 7), mask))};
  }
  [[gnu::always_inline]] static inline float32x4_t scale(const uint8_t* b, int, int quad) {
    return halves_at(b, quad);
  }
  [[gnu::always_inline]] static inline int32x4_t half_scale(const uint8_t* b, int s, int half,
                                                            int quad) {
    const uint8x16_t six = six_bits(b + 32 + s / 4 * 96, s % 4 * 2 + half);
    return widen_quad(vsubq_s8(vreinterpretq_s8_u8(six), vdupq_n_s8(32)), quad);
  }
};

template <bool kSkewed>
struct TypeG4 {
  static constexpr int kBytes = 16 * 36, kSubs = 2;
  static constexpr float kLift = kSkewed ? 16 : 1;
  static constexpr bool kMinima = true, kHalves = false, kUnsigned = kSkewed;
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
