// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/quantize_activations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "cpu/features.h"
#include "cpu/linear/quantize_block.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace spillway {
namespace {

bool is_zero(float peak) { return peak < kLeastPeak; }  // false for NaN
float inverse_scale(float peak) { return is_zero(peak) ? 0 : 127 / peak; }
float scale(float peak) { return is_zero(peak) ? 0 : peak / 127; }

#if defined(__aarch64__)
struct NeonBlock {
  float32x4_t v[8];
  float peak;
};
NeonBlock load_block(const float* x) {
  NeonBlock block;
  float32x4_t top = vdupq_n_f32(0);
  for (int i = 0; i < 8; ++i) {
    block.v[i] = vld1q_f32(x + 4 * i);
    top = vmaxq_f32(top, vabsq_f32(block.v[i]));  // NaN stays
  }
  block.peak = vmaxvq_f32(top);
  return block;
}

// Stores the codes of columns 8i to 8i + 7.
int16x8_t store_codes(int32x4_t low, int32x4_t high, int i, int8_t* q) {
  const int16x8_t both = vcombine_s16(vqmovn_s32(low), vqmovn_s32(high));
  vst1_s8(q + 16 * i, vqmovn_s16(both));
  return both;
}

struct CodeSums {
  int32_t half[2];  // of 16 columns each
};
CodeSums round_block(const NeonBlock& block, float inverse, int8_t* q) {
  int16x8_t sums[2] = {vdupq_n_s16(0), vdupq_n_s16(0)};
  for (int i = 0; i < 4; ++i) {
    const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(block.v[2 * i], inverse));  // NaN becomes 0
    const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(block.v[2 * i + 1], inverse));
    sums[i / 2] = vaddq_s16(sums[i / 2], store_codes(low, high, i, q));
  }
  return {{vaddlvq_s16(sums[0]), vaddlvq_s16(sums[1])}};
}

// Rounds a block as Int8Form::skew says. Codes reach kSkewedPeak and, skewed, a sixteenth more.
constexpr float kSkewedPeak = 119;
CodeSums round_block_skewed(const NeonBlock& block, float inverse, int8_t* q) {
  int16x8_t sums[2] = {vdupq_n_s16(0), vdupq_n_s16(0)};
  int32x4_t upper[4];  // columns 16 to 31
  for (int i = 0; i < 4; ++i) upper[i] = vcvtnq_s32_f32(vmulq_n_f32(block.v[4 + i], inverse));
  for (int i = 0; i < 2; ++i) {
    int32x4_t lower[2];
    for (int j = 0; j < 2; ++j) {
      const float32x4_t scaled = vmulq_n_f32(block.v[2 * i + j], inverse);
      const float32x4_t sixteenth = vmulq_n_f32(vcvtq_f32_s32(upper[2 * i + j]), 0.0625F);
      lower[j] = vcvtnq_s32_f32(vsubq_f32(scaled, sixteenth));
    }
    sums[0] = vaddq_s16(sums[0], store_codes(lower[0], lower[1], i, q));
    sums[1] = vaddq_s16(sums[1], store_codes(upper[2 * i], upper[2 * i + 1], 2 + i, q));
  }
  return {{vaddlvq_s16(sums[0]), vaddlvq_s16(sums[1])}};
}

QuantizedBlock quantize_block(const float* x, int8_t* q) {
  const NeonBlock block = load_block(x);
  const CodeSums sums = round_block(block, inverse_scale(block.peak), q);
  return {scale(block.peak), {sums.half[0], sums.half[1]}};
}
QuantizedBlock quantize_block_skewed(const float* x, int8_t* q) {
  const NeonBlock block = load_block(x);
  const bool zero = is_zero(block.peak);
  const CodeSums sums = round_block_skewed(block, zero ? 0 : kSkewedPeak / block.peak, q);
  return {zero ? 0 : block.peak / kSkewedPeak, {sums.half[0], sums.half[1]}};
}

// 256 columns of a token, for a form with multipliers.
struct QuantizedSuper {
  float d, t;  // as in Int8Super
  int32_t multiplier[8], sum[16];
};
QuantizedSuper quantize_super(const float* x, const Int8Form& form, int8_t* q) {
  float peaks[8];
  for (int s = 0; s < 8; ++s) peaks[s] = load_block(x + 32 * s).peak;
  const float peak = vmaxvq_f32(vmaxq_f32(vld1q_f32(peaks), vld1q_f32(peaks + 4)));  // NaN stays
  const auto most = static_cast<float>(form.multipliers);
  const float top_code = form.skew ? kSkewedPeak : 127;
  const float step = is_zero(peak) ? 0 : peak / (top_code * most);
  const bool usable = step > 0 && peak <= std::numeric_limits<float>::max();

  QuantizedSuper super{};
  int32_t largest = 0;
  for (int s = 0; s < 8; ++s) {
    int multiplier = 1;
    if (usable) multiplier = std::max(1, static_cast<int>(std::ceil(peaks[s] / peak * most)));
    const float inverse = usable ? 1 / (step * static_cast<float>(multiplier)) : 0;
    const NeonBlock block = load_block(x + 32 * s);
    const CodeSums sums = form.skew ? round_block_skewed(block, inverse, q + s * 64)
                                    : round_block(block, inverse, q + s * 64);
    super.multiplier[s] = multiplier * form.multiplier_unit;
    const int whole = sums.half[0] + sums.half[1];
    if (form.halves) {
      for (int half = 0; half < 2; ++half) super.sum[2 * s + half] = multiplier * sums.half[half];
    } else {  // skewed: in sixteenths, see block_sums
      super.sum[s] = multiplier * (form.skew ? 16 * whole + sums.half[1] : whole);
    }
  }
  for (const int32_t sum : super.sum) largest = std::max(largest, std::abs(sum));
  int shift = 0;  // raised until 16 bits hold the sums
  while (largest >> shift > 32766) ++shift;
  const int32_t half = (1 << shift) / 2;
  for (int32_t& sum : super.sum) sum = (sum + half) >> shift;
  super.d = step * (static_cast<float>(form.integer_unit) / form.lift);
  super.t = step * std::ldexp(form.skew ? 0.0625F : 1.0F, shift);
  return super;
}

// Quantizes 256 columns of both tokens of a pair (of one token twice if they are the same).
void quantize_super_pair(const float* first, const float* second, const Int8Form& form, int8_t* q,
                         float* d, float* m, Int8Super& super) {
  const QuantizedSuper a = quantize_super(first, form, q);
  QuantizedSuper b = a;
  if (second != first) {
    b = quantize_super(second, form, q + 8);
  } else {
    for (int piece = 0; piece < 32; ++piece) std::memcpy(q + piece * 16 + 8, q + piece * 16, 8);
  }
  for (int copy = 0; copy < 2; ++copy) {
    super.d[2 * copy] = a.d;
    super.d[2 * copy + 1] = b.d;
    super.t[2 * copy] = a.t;
    super.t[2 * copy + 1] = b.t;
    for (int s = 0; s < 8; ++s) {
      const int at = form.halves ? 2 * s + copy : s;
      d[4 * s + 2 * copy] = std::bit_cast<float>(a.multiplier[s]);
      d[4 * s + 2 * copy + 1] = std::bit_cast<float>(b.multiplier[s]);
      m[4 * s + 2 * copy] = std::bit_cast<float>(a.sum[at]);
      m[4 * s + 2 * copy + 1] = std::bit_cast<float>(b.sum[at]);
    }
  }
  for (int s = 0; s < 8; ++s) super.multiplier[s] = static_cast<int16_t>(a.multiplier[s]);
  for (int s = 0; s < 16; ++s) super.sum[s] = static_cast<int16_t>(a.sum[s]);
}
#else
QuantizedBlock quantize_block(const float* x, int8_t* q) {
  float peak = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::isnan(peak)) break;
    if (!(std::fabs(x[i]) <= peak)) peak = std::fabs(x[i]);
  }
  const float inverse = inverse_scale(peak);
  QuantizedBlock block{scale(peak), {0, 0}};
  for (int i = 0; i < 32; ++i) {
    const float scaled = x[i] * inverse;
    const int value = std::isnan(scaled) ? 0 : static_cast<int>(std::nearbyint(scaled));
    q[i / 8 * 16 + i % 8] = static_cast<int8_t>(value);
    block.sum[i / 16] += value;
  }
  return block;
}
#endif

QuantizeBlock best_quantize_block([[maybe_unused]] const Int8Form& form) {
#if defined(__aarch64__)
  if (form.skew) return quantize_block_skewed;
#elif defined(__x86_64__)
  if (cpu_features().avx2) return quantize_block_avx2;
#endif
  return quantize_block;
}

// The values of Int8Args::m for the two copies of a token.
struct BlockSums {
  float copy[2];
};
BlockSums block_sums(const QuantizedBlock& block, const Int8Form& form) {
  const int whole = block.sum[0] + block.sum[1];
  if (form.offset == 0) {
    if (form.halves) {
      return {
          {block.d * static_cast<float>(block.sum[0]), block.d * static_cast<float>(block.sum[1])}};
    }
    // The columns of a skewed block stand for code + (code of the upper column) / 16.
    const float skewed = form.skew ? static_cast<float>(block.sum[1]) / 16 : 0;
    const float m = block.d * (static_cast<float>(whole) + skewed);
    return {{m, m}};
  }
  const auto start = [&](int sum) { return std::bit_cast<float>(-form.offset * sum); };
  if (form.skew) {  // in sixteenths, like the sums of kernels that use the skewed form
    const float skewed = start(16 * whole + block.sum[1]);
    return {{skewed, skewed}};
  }
  if (form.halves) return {{start(block.sum[0]), start(block.sum[1])}};
  return {{start(whole), start(whole)}};
}

}  // namespace

void quantize_pairs(const Activations& x, const Int8Form& form, int64_t first_pair,
                    int64_t last_pair, const QuantizedPairs& to) {
  const QuantizeBlock quantize = best_quantize_block(form);
  const int64_t blocks = x.cols / 32;
  const float unlift = 1 / form.lift;
  for (int64_t pair = first_pair; pair < last_pair; ++pair) {
    const float* first = x.f32(2 * pair);
    const float* second = x.f32(std::min(2 * pair + 1, x.rows - 1));
#if defined(__aarch64__)
    if (form.multipliers != 0) {
      for (int64_t i = 0; i < blocks; i += 8) {
        const int64_t at = pair * blocks + i;
        quantize_super_pair(first + 32 * i, second + 32 * i, form, to.q + at * 64, to.d + at * 4,
                            to.m + at * 4, to.super[at / 8]);
      }
      continue;
    }
#endif
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t at = pair * blocks + i;
      int8_t* q = to.q + at * 64;
      const QuantizedBlock a = quantize(first + 32 * i, q);
      QuantizedBlock b = a;
      if (second != first) {
        b = quantize(second + 32 * i, q + 8);
      } else {
        for (int piece = 0; piece < 4; ++piece) std::memcpy(q + piece * 16 + 8, q + piece * 16, 8);
      }
      const BlockSums am = block_sums(a, form), bm = block_sums(b, form);
      for (int copy = 0; copy < 2; ++copy) {
        to.d[4 * at + 2 * copy] = a.d * unlift;
        to.d[4 * at + 2 * copy + 1] = b.d * unlift;
        to.m[4 * at + 2 * copy] = am.copy[copy];
        to.m[4 * at + 2 * copy + 1] = bm.copy[copy];
      }
    }
  }
}

}  // namespace spillway
