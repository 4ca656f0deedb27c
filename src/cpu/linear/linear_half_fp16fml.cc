// SPDX-License-Identifier: Apache-2.0
// Multiplies up to four tokens with F16 rows by products of halves added to floats. The file is
// compiled for that, so it contains nothing else. Converting weights to F32 first would run at one
// vector per cycle, half the memory's speed.
//
// Activations are rounded to halves after scaling by a power of two that puts a token's largest at
// 2^14: they have full precision (11 bits) down to 2^-28 of it. Packed: [k / 8][tokens][8].
#include "cpu/linear/linear_half_inl.h"

namespace spillway {
namespace {

// A group of T tokens and R rows of each stream.
template <int T, int R>
struct HalfGroup {
  static constexpr int kTokens = T, kRows = R, kWidth = T;
  static constexpr int kAll = kStreams * kRows;
  // The number of sums (of alternate vectors) for each row and token: enough for the latency of the
  // additions, few enough for the registers.
  static constexpr int kSums = T * kRows == 1 ? 4 : T * kRows <= 3 ? 2 : 1;
  float32x4_t sum[kAll][T][kSums];

  [[gnu::always_inline]] inline void start() {
#pragma GCC unroll 8
    for (int i = 0; i < kAll; ++i) {
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
        for (int j = 0; j < kSums; ++j) sum[i][t][j] = vdupq_n_f32(0);
      }
    }
  }

  // Adds vector v of row i.
  [[gnu::always_inline]] inline void add_vector(const uint8_t* w, const uint16_t* x, int i, int v) {
    const float16x8_t weights = vreinterpretq_f16_u8(load16(w + 16 * v));
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const float16x8_t token = vreinterpretq_f16_u16(vld1q_u16(x + (v * T + t) * 8));
      float32x4_t& low = sum[i][t][2 * v % kSums];
      low = vfmlalq_low_f16(low, weights, token);
      float32x4_t& high = sum[i][t][(2 * v + 1) % kSums];
      high = vfmlalq_high_f16(high, weights, token);
    }
  }
  [[gnu::always_inline]] inline void add_line(int s, const uint8_t* w, const uint16_t* x) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) add_vector(w, x, s, v);
  }
  [[gnu::always_inline]] inline void add(const uint8_t* const* w, const uint16_t* x) {
    if constexpr (T == 1) {  // line by line, which suits memory best
#pragma GCC unroll 8
      for (int i = 0; i < kAll; ++i) add_line(i, w[i], x);
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
#pragma GCC unroll 8
        for (int i = 0; i < kAll; ++i) add_vector(w[i], x, i, v);
      }
    }
  }

  [[gnu::always_inline]] inline float32x4_t all_of(int i, int t) const {
    float32x4_t all = sum[i][t][0];
    if constexpr (kSums >= 2) all = vaddq_f32(all, sum[i][t][1]);
    if constexpr (kSums == 4) all = vaddq_f32(all, vaddq_f32(sum[i][t][2], sum[i][t][3]));
    return all;
  }
  [[gnu::always_inline]] inline void take(int s, float32x4_t* totals) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      totals[t] = vaddq_f32(totals[t], all_of(s, t));
#pragma GCC unroll 4
      for (int j = 0; j < kSums; ++j) sum[s][t][j] = vdupq_n_f32(0);
    }
  }

  [[gnu::always_inline]] inline void finish(float (*out)[kAll]) const {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
      for (int i = 0; i < kAll; ++i) {
        out[t][i] = vaddvq_f32(all_of(i, t));
      }
    }
  }
};

static float largest_of(const float* x, int64_t k) {
  float32x4_t top = vdupq_n_f32(0);
  int64_t i = 0;
  for (; i + 4 <= k; i += 4) top = vmaxq_f32(top, vabsq_f32(vld1q_f32(x + i)));  // keeps NaN
  float largest = vmaxvq_f32(top);
  for (; i < k; ++i) {
    const float value = x[i] < 0 ? -x[i] : x[i];
    largest = value <= largest ? largest : value;
  }
  return largest;
}

static float power_of_two(int32_t exponent) {
  const uint32_t bits = static_cast<uint32_t>(127 + exponent) << 23;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Converts one token to halves, 8 of every 8 * stride elements. Returns the factor that undoes the
// scaling.
static float round_token(const float* x, int64_t k, int stride, uint16_t* out) {
  const float largest = largest_of(x, k);
  uint32_t bits;
  memcpy(&bits, &largest, 4);
  // The factor is 2^(14 - exponent), within the range of a float. Infinities and NaN stay as they
  // are.
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 255) - 127;
  const int32_t shift = exponent < -100 ? 114 : 14 - (exponent > 127 ? 127 : exponent);
  const float factor = power_of_two(shift);
  const int64_t padded = (k + kHalfStep - 1) / kHalfStep * kHalfStep;
  int64_t i = 0;
  for (; i + 8 <= k; i += 8, out += 8 * stride) {
    const float16x4_t low = vcvt_f16_f32(vmulq_n_f32(vld1q_f32(x + i), factor));
    const float16x4_t high = vcvt_f16_f32(vmulq_n_f32(vld1q_f32(x + i + 4), factor));
    vst1q_u16(out, vreinterpretq_u16_f16(vcombine_f16(low, high)));
  }
  for (; i < padded; i += 8, out += 8 * stride) {
    for (int64_t j = 0; j < 8; ++j) {
      const auto half = static_cast<float16_t>(i + j < k ? x[i + j] * factor : 0.0F);
      memcpy(out + j, &half, 2);
    }
  }
  return power_of_two(-shift);
}

template <int T>
static void pack(const float* x, int64_t stride, int64_t count, int64_t k, uint16_t* packed,
                 float* factors) {
  for (int64_t t = 0; t < T; ++t) {
    // A group that is not full multiplies with one of its tokens again.
    factors[t] = round_token(x + (t < count ? t : count - 1) * stride, k, T, packed + 8 * t);
  }
}

template <int T>
static void multiply(const HalfProduct& a, int64_t begin, int64_t end) {
  using Single = HalfGroup<T, 1>;
  if (T <= 2 && fits_quarters<Single>(a.k)) {
    multiply_quarters<Single>(a, begin, end);
  } else {
    // Two rows of a stream share the loads of activations; one alone reads memory a little faster.
    multiply_rows<HalfGroup<T, T == 2 ? 2 : 1>>(a, begin, end);
  }
}

template <int T>
constexpr HalfKernel kernel_of() {
  return {.tokens = T, .x_width = T, .pack = pack<T>, .multiply = multiply<T>};
}
constexpr HalfKernel kKernels[] = {kernel_of<1>(), kernel_of<2>(), kernel_of<3>(), kernel_of<4>()};

}  // namespace

constinit const HalfKernels kF16Fp16fmlKernels = {kKernels, 4};

}  // namespace spillway
