// SPDX-License-Identifier: Apache-2.0
#include "cpu/quantize_activations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/features.h"
#include "cpu/quantize_block.h"

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

// Columns 8i to 8i + 7.
int16x8_t store_codes(int32x4_t low, int32x4_t high, int i, int8_t* q) {
  const int16x8_t both = vcombine_s16(vqmovn_s32(low), vqmovn_s32(high));
  vst1_s8(q + 16 * i, vqmovn_s16(both));
  return both;
}

QuantizedBlock quantize_block(const float* x, int8_t* q) {
  const NeonBlock block = load_block(x);
  const float inverse = inverse_scale(block.peak);
  int16x8_t sums[2] = {vdupq_n_s16(0), vdupq_n_s16(0)};
  for (int i = 0; i < 4; ++i) {
    const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(block.v[2 * i], inverse));  // NaN becomes 0
    const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(block.v[2 * i + 1], inverse));
    sums[i / 2] = vaddq_s16(sums[i / 2], store_codes(low, high, i, q));
  }
  return {scale(block.peak), {vaddlvq_s16(sums[0]), vaddlvq_s16(sums[1])}};
}

// As Int8Form::skew says. Codes reach 119 and, skewed, 119 + 119 / 16.
QuantizedBlock quantize_block_skewed(const float* x, int8_t* q) {
  const NeonBlock block = load_block(x);
  const bool zero = is_zero(block.peak);
  const float inverse = zero ? 0 : 119 / block.peak;
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
  return {zero ? 0 : block.peak / 119, {vaddlvq_s16(sums[0]), vaddlvq_s16(sums[1])}};
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

// What Int8Args::m holds for the two copies of a token.
struct BlockSums {
  float copy[2];
};
BlockSums block_sums(const QuantizedBlock& block, const Int8Form& form) {
  const int whole = block.sum[0] + block.sum[1];
  if (form.offset == 0) {
    // A skewed block's columns stand for code + (code of the upper column) / 16.
    const float skewed = form.skew ? static_cast<float>(block.sum[1]) / 16 : 0;
    const float m = block.d * (static_cast<float>(whole) + skewed);
    return {{m, m}};
  }
  const auto start = [&](int sum) { return std::bit_cast<float>(-form.offset * sum); };
  if (form.skew) {  // in sixteenths, which such kernels' sums are
    const float skewed = start(16 * whole + block.sum[1]);
    return {{skewed, skewed}};
  }
  if (form.halves) return {{start(block.sum[0]), start(block.sum[1])}};
  return {{start(whole), start(whole)}};
}

}  // namespace

void quantize_pairs(const Activations& x, const Int8Form& form, int64_t first_pair,
                    int64_t last_pair, int8_t* q, float* d, float* m) {
  const QuantizeBlock quantize = best_quantize_block(form);
  const int64_t blocks = x.cols / 32;
  const float unlift = 1 / form.lift;
  for (int64_t pair = first_pair; pair < last_pair; ++pair) {
    const float* first = x.f32(2 * pair);
    const float* second = x.f32(std::min(2 * pair + 1, x.rows - 1));
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t at = pair * blocks + i;
      const QuantizedBlock a = quantize(first + 32 * i, q + at * 64);
      QuantizedBlock b = a;
      if (second != first) {
        b = quantize(second + 32 * i, q + at * 64 + 8);
      } else {
        for (int piece = 0; piece < 4; ++piece) {
          std::memcpy(q + at * 64 + piece * 16 + 8, q + at * 64 + piece * 16, 8);
        }
      }
      const BlockSums am = block_sums(a, form), bm = block_sums(b, form);
      for (int copy = 0; copy < 2; ++copy) {
        d[4 * at + 2 * copy] = a.d * unlift;
        d[4 * at + 2 * copy + 1] = b.d * unlift;
        m[4 * at + 2 * copy] = am.copy[copy];
        m[4 * at + 2 * copy + 1] = bm.copy[copy];
      }
    }
  }
}

}  // namespace spillway
