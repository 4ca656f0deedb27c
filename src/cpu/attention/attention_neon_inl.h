// SPDX-License-Identifier: Apache-2.0
// The vectors of the ARM kernels that do a cut one KV head after the other, with instructions of
// every 64-bit ARM processor.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace spillway {
namespace {

struct Neon {
  using Floats = float32x4_t;
  static constexpr int64_t kLanes = 4;
  static constexpr int kMostQueries = 4;  // queries per pass of a kernel
  static constexpr int kSums = 16;        // vectors of floats that kernels keep in registers

  [[gnu::always_inline]] static inline Floats set(float x) { return vdupq_n_f32(x); }
  [[gnu::always_inline]] static inline Floats load(const float* p) { return vld1q_f32(p); }
  [[gnu::always_inline]] static inline void store(float* p, Floats x) { vst1q_f32(p, x); }
  [[gnu::always_inline]] static inline Floats load_halves(const void* p) {
    return vcvt_f32_f16(vld1_f16(static_cast<const float16_t*>(p)));
  }
  [[gnu::always_inline]] static inline Floats load_bfloats(const void* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(static_cast<const uint16_t*>(p)), 16));
  }
  [[gnu::always_inline]] static inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
  [[gnu::always_inline]] static inline Floats sub(Floats a, Floats b) { return vsubq_f32(a, b); }
  [[gnu::always_inline]] static inline Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
  // Returns a * b + c.
  [[gnu::always_inline]] static inline Floats fma(Floats a, Floats b, Floats c) {
    return vfmaq_f32(c, a, b);
  }
  // Returns the other in lanes where one is NaN.
  [[gnu::always_inline]] static inline Floats max(Floats a, Floats b) { return vmaxnmq_f32(a, b); }
  [[gnu::always_inline]] static inline Floats magnitude(Floats x) { return vabsq_f32(x); }
  // Returns x in lanes where y is not 0, else 0.
  [[gnu::always_inline]] static inline Floats where_any(Floats y, Floats x) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vceqzq_f32(y)));
  }
  // Returns x in lanes `begin` to `end`, `others` elsewhere; either bound may be outside the
  // vector.
  [[gnu::always_inline]] static inline Floats lanes_of(Floats x, int64_t begin, int64_t end,
                                                       Floats others) {
    const uint32x4_t seen = vbicq_u32(first_lanes(end), first_lanes(begin));
    return vbslq_f32(seen, x, others);
  }
  // Returns 2^x given p = 2^(x - n) and n in the low bits of `shifted`; 0 unless x > low.
  [[gnu::always_inline]] static inline Floats scale_by_power(Floats p, Floats shifted, Floats x,
                                                             Floats low) {
    const int32x4_t bits =
        vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(bits), vcgtq_f32(x, low)));
  }
  [[gnu::always_inline]] static inline float largest(Floats x) { return vmaxnmvq_f32(x); }
  [[gnu::always_inline]] static inline float sum(Floats x) { return vaddvq_f32(x); }
  // Returns the sums of kLanes vectors that are contiguous.
  [[gnu::always_inline]] static inline Floats sum_each(const float* rows) {
    return vpaddq_f32(vpaddq_f32(vld1q_f32(rows), vld1q_f32(rows + 4)),
                      vpaddq_f32(vld1q_f32(rows + 8), vld1q_f32(rows + 12)));
  }

 private:
  [[gnu::always_inline]] static inline uint32x4_t first_lanes(int64_t count) {
    constexpr int32_t kIndex[4] = {0, 1, 2, 3};
    const auto lanes = static_cast<int32_t>(count < 0 ? 0 : count > kLanes ? kLanes : count);
    return vcltq_s32(vld1q_s32(kIndex), vdupq_n_s32(lanes));
  }
};

}  // namespace
}  // namespace spillway
