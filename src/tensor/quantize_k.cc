// SPDX-License-Identifier: Apache-2.0
#include "tensor/quantize_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/quantize_fit.h"

namespace spillway {
namespace {

constexpr float kMaxHalf = 65504;

int nearest(float value, int low, int high) {
  return static_cast<int>(
      nearest_level(clamp_level(value, static_cast<float>(low), static_cast<float>(high))));
}

// Rounds to F16, upwards if rounding down loses more than 1/512. F16 keeps few bits of very small
// numbers. If d were rounded down far, even the largest factor times d would be less than the scale
// that its sub-block needs.
Half half_that_reaches(float value) {
  Half half = to_half(value);
  if (to_float(half) < value * (1 - 1.0F / 512) && half.bits < 0x7bffU) ++half.bits;
  return half;
}

// Does the inverse of unpack_k_scales().
void pack_k_scales(const int scales[8], const int minima[8], uint8_t packed[12]) {
  for (int i = 0; i < 4; ++i) {
    packed[i] = static_cast<uint8_t>(scales[i] | (scales[i + 4] >> 4) << 6);
    packed[i + 4] = static_cast<uint8_t>(minima[i] | (minima[i + 4] >> 4) << 6);
    packed[i + 8] = static_cast<uint8_t>((scales[i + 4] & 15) | (minima[i + 4] & 15) << 4);
  }
}

// Two F16 scales, the six-bit factors of eight sub-blocks, and the levels.
struct AffineBlock {
  Half d, dmin;
  int scales[8] = {}, minima[8] = {};
  float levels[256] = {};
};

// Tries the factors next to the ideal ones, because the best pair shows only once both are rounded.
// Returns the least squared error.
float choose_factors(const float* x, const AffineFit& ideal, float d, float dmin, float top,
                     int& scale, int& minimum) {
  const int near_scale = d == 0 ? 0 : nearest(ideal.scale / d, 0, 63);
  const int near_minimum = dmin == 0 ? 0 : nearest(-ideal.offset / dmin, 0, 63);
  float best = std::numeric_limits<float>::infinity();
  for (int s = std::max(near_scale - 1, 0); s <= std::min(near_scale + 1, 63); ++s) {
    for (int m = std::max(near_minimum - 1, 0); m <= std::min(near_minimum + 1, 63); ++m) {
      const float error =
          stored_error<32>(x, d * static_cast<float>(s), -dmin * static_cast<float>(m), 0, top);
      if (error < best) {
        best = error;
        scale = s;
        minimum = m;
      }
    }
  }
  return best;
}

// Fits d and dmin by least squares over the whole block, for fixed levels and factors.
void refit(const float* x, const AffineBlock& block, float& d, float& dmin) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
  for (int s = 0; s < 8; ++s) {
    FitLanes q{}, qq{}, xq{}, total{};
    for (int i = 32 * s; i < 32 * (s + 1); i += kFitLanes) {
      const FitLanes level = load_lanes(block.levels + i), value = load_lanes(x + i);
      q += level;
      qq += level * level;
      xq += value * level;
      total += value;
    }
    const double scale = block.scales[s], minimum = block.minima[s];
    aa += scale * scale * double{sum_lanes(qq)};
    ab -= scale * minimum * double{sum_lanes(q)};
    bb += minimum * minimum * 32;
    ax += scale * double{sum_lanes(xq)};
    bx -= minimum * double{sum_lanes(total)};
  }
  const double determinant = aa * bb - ab * ab;
  if (determinant > 1e-9 * aa * bb && determinant > 0) {
    d = static_cast<float>((ax * bb - bx * ab) / determinant);
    dmin = static_cast<float>((bx * aa - ax * ab) / determinant);
  } else if (aa > 0) {
    d = static_cast<float>(ax / aa);
    dmin = 0;
  }
}

// Chooses factors and levels for the block's d and dmin. Returns the squared error.
float choose_levels(const float* x, const AffineFit ideal[8], float top, AffineBlock& block) {
  const float d = to_float(block.d), dmin = to_float(block.dmin);
  float error = 0;
  for (int s = 0; s < 8; ++s) {
    error += choose_factors(x + 32 * s, ideal[s], d, dmin, top, block.scales[s], block.minima[s]);
    set_levels<32>(x + 32 * s, d * static_cast<float>(block.scales[s]),
                   -dmin * static_cast<float>(block.minima[s]), 0, top, block.levels + 32 * s);
  }
  return error;
}

bool fit_block(const float* x, float top, AffineBlock& block) {
  AffineFit ideal[8];
  float peak_scale = 0, peak_minimum = 0;
  for (int s = 0; s < 8; ++s) {
    ideal[s] = fit_affine<32>(x + 32 * s, top, true);
    peak_scale = std::max(peak_scale, ideal[s].scale);
    peak_minimum = std::max(peak_minimum, -ideal[s].offset);
  }
  if (peak_scale / 63 > kMaxHalf || peak_minimum / 63 > kMaxHalf) return false;
  block.d = half_that_reaches(peak_scale / 63);
  block.dmin = half_that_reaches(peak_minimum / 63);
  const float error = choose_levels(x, ideal, top, block);
  float d = to_float(block.d), dmin = to_float(block.dmin);
  refit(x, block, d, dmin);
  if (!(d >= 0 && d <= kMaxHalf && dmin >= 0 && dmin <= kMaxHalf)) return true;
  AffineBlock again;
  again.d = to_half(d);
  again.dmin = to_half(dmin);
  if (choose_levels(x, ideal, top, again) < error) block = again;
  return true;
}

}  // namespace

bool quantize_block(const float* values, BlockQ4_K& block) {
  AffineBlock fit;
  if (!fit_block(values, 15, fit)) return false;
  block.d = fit.d;
  block.dmin = fit.dmin;
  pack_k_scales(fit.scales, fit.minima, block.scales);
  for (int i = 0; i < 128; ++i) {
    const float* pair = fit.levels + i / 32 * 64 + i % 32;
    block.q[i] = static_cast<uint8_t>(static_cast<int>(pair[0]) | static_cast<int>(pair[32]) << 4);
  }
  return true;
}

bool quantize_block(const float* values, BlockQ5_K& block) {
  AffineBlock fit;
  if (!fit_block(values, 31, fit)) return false;
  block.d = fit.d;
  block.dmin = fit.dmin;
  pack_k_scales(fit.scales, fit.minima, block.scales);
  std::memset(block.high, 0, sizeof(block.high));
  for (int i = 0; i < 128; ++i) {
    const float* pair = fit.levels + i / 32 * 64 + i % 32;
    const int low = static_cast<int>(pair[0]), high = static_cast<int>(pair[32]);
    block.q[i] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
    const int at = i / 32 * 2;
    block.high[i % 32] =
        static_cast<uint8_t>(block.high[i % 32] | (low >> 4) << at | (high >> 4) << (at + 1));
  }
  return true;
}

namespace {

struct ScaledBlock {
  Half d;
  int scales[16] = {};
  float levels[256] = {};
};

float choose_levels(const float* x, const float ideal[16], ScaledBlock& block) {
  const float d = to_float(block.d);
  float error = 0;
  for (int s = 0; s < 16; ++s) {
    const int near = d == 0 ? 0 : nearest(ideal[s] / d, -128, 127);
    float best = std::numeric_limits<float>::infinity();
    for (int scale = std::max(near - 1, -128); scale <= std::min(near + 1, 127); ++scale) {
      const float found = stored_error<16>(x + 16 * s, d * static_cast<float>(scale), 0, -32, 31);
      if (found < best) {
        best = found;
        block.scales[s] = scale;
      }
    }
    error += best;
    set_levels<16>(x + 16 * s, d * static_cast<float>(block.scales[s]), 0, -32, 31,
                   block.levels + 16 * s);
  }
  return error;
}

}  // namespace

bool quantize_block(const float* values, BlockQ6_K& block) {
  float ideal[16], peak = 0;
  for (int s = 0; s < 16; ++s) {
    ideal[s] = fit_scale<16>(values + 16 * s, 32);
    peak = std::max(peak, std::fabs(ideal[s]));
  }
  if (peak / 127 > kMaxHalf) return false;
  ScaledBlock fit;
  fit.d = half_that_reaches(peak / 127);
  choose_levels(values, ideal, fit);

  block.d = fit.d;
  for (int s = 0; s < 16; ++s) block.scales[s] = static_cast<int8_t>(fit.scales[s]);
  std::memset(block.low, 0, sizeof(block.low));
  std::memset(block.high, 0, sizeof(block.high));
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, j = i % 128, level = static_cast<int>(fit.levels[i]) + 32;
    uint8_t& low = block.low[half * 64 + j % 64];
    low = static_cast<uint8_t>(low | (level & 15) << (j < 64 ? 0 : 4));
    uint8_t& high = block.high[half * 32 + j % 32];
    high = static_cast<uint8_t>(high | (level >> 4) << (j / 32 * 2));
  }
  return true;
}

}  // namespace spillway
