// SPDX-License-Identifier: Apache-2.0
// Finds the scale (and minimum) with which a few values are stored in integer levels at the least
// squared error.
//
// Rounding gives the error many local minima, so candidates are tried: each assigns a level to
// every value, and for fixed levels the best scale and minimum are a least-squares solution. All
// sums run in four lanes in a fixed order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace spillway {

// Four floats fit a register of every supported processor.
inline constexpr int kFitLanes = 4;
using FitLanes = float __attribute__((vector_size(kFitLanes * sizeof(float))));

inline FitLanes load_lanes(const float* x) {
  FitLanes lanes;
  std::memcpy(&lanes, x, sizeof(lanes));
  return lanes;
}
inline float sum_lanes(FitLanes lanes) { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }

// Rounds to the nearest integer, for magnitudes below 2^22: the sum has no bits left for fractions.
template <class T>
T nearest_level(T value) {
  constexpr float kNoFraction = 12582912.0F;
  return (value + kNoFraction) - kNoFraction;
}
inline float clamp_level(float value, float low, float high) {
  return std::min(std::max(value, low), high);
}
// Computes round((x - offset) * inverse), clamped to [bottom, top].
inline FitLanes levels_of(FitLanes x, float offset, float inverse, float bottom, float top) {
  const FitLanes low = FitLanes{} + bottom, high = FitLanes{} + top;
  FitLanes value = (x - offset) * inverse;
  value = value < low ? low : value;
  value = value > high ? high : value;
  return nearest_level(value);
}

struct ValueRange {
  float low, high;
  // Returns the value of largest magnitude, with its sign.
  float peak() const { return -low > high ? low : high; }
};
template <int N>
ValueRange range_of(const float* x) {
  ValueRange range{x[0], x[0]};
  for (int i = 1; i < N; ++i) {
    range.low = x[i] < range.low ? x[i] : range.low;
    range.high = x[i] > range.high ? x[i] : range.high;
  }
  return range;
}

// The sums over values x and levels q that least squares needs.
struct LevelSums {
  float q, qq, xq;
};
template <int N>
LevelSums level_sums(const float* x, float offset, float inverse, float bottom, float top) {
  FitLanes q{}, qq{}, xq{};
  for (int i = 0; i < N; i += kFitLanes) {
    const FitLanes value = load_lanes(x + i);
    const FitLanes level = levels_of(value, offset, inverse, bottom, top);
    q += level;
    qq += level * level;
    xq += value * level;
  }
  return {sum_lanes(q), sum_lanes(qq), sum_lanes(xq)};
}

// Returns the squared error of storing x as scale * level + offset with the best level for each.
template <int N>
float stored_error(const float* x, float scale, float offset, float bottom, float top) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  FitLanes sum{};
  for (int i = 0; i < N; i += kFitLanes) {
    const FitLanes value = load_lanes(x + i);
    const FitLanes level = levels_of(value, offset, inverse, bottom, top);
    const FitLanes off = value - (level * scale + offset);
    sum += off * off;
  }
  return sum_lanes(sum);
}

// Returns the scale of x ~ scale * level with levels in [-half_range, half_range - 1]. It may be
// negative, and is 0 if all values are (nearly) zero.
template <int N>
float fit_scale(const float* x, float half_range) {
  const float peak = range_of<N>(x).peak();
  if (std::fabs(peak) < 1e-30F) return 0;
  float best = 0, best_scale = 0;
  const auto try_peak_at = [&](float level) {
    const LevelSums sums = level_sums<N>(x, 0, level / peak, -half_range, half_range - 1);
    // This is how much the scale lowers the error compared with storing zeros.
    const float gain = sums.xq * sums.xq;
    if (sums.qq > 0 && gain > best * sums.qq) {
      best = gain / sums.qq;
      best_scale = sums.xq / sums.qq;
    }
  };
  // The range has one more level below zero, so the peak is tried there first. Clipping the peak a
  // little can pay off by finer steps, and not reaching the last level can, too.
  constexpr int kSteps = 12;
  for (int i = -kSteps; i <= kSteps; ++i) {
    const float shift = static_cast<float>(i) * 0.1F * (1 + half_range / 32);
    try_peak_at(-half_range + shift);
    try_peak_at(half_range - 1 + shift);
  }
  return best_scale;
}

struct AffineFit {
  float scale = 0, offset = 0;
};
// Finds x ~ scale * level + offset with levels in [0, top] and scale >= 0. With `offset_down` the
// offset is never above 0.
template <int N>
AffineFit fit_affine(const float* x, float top, bool offset_down) {
  ValueRange range = range_of<N>(x);
  if (offset_down) range.low = std::min(range.low, 0.0F);
  const float width = range.high - range.low;
  if (width < 1e-30F) return {0, range.low};
  FitLanes lanes{};
  for (int i = 0; i < N; i += kFitLanes) lanes += load_lanes(x + i);
  const float total = sum_lanes(lanes);
  AffineFit best{width / top, range.low};
  float best_error = stored_error<N>(x, best.scale, best.offset, 0, top);
  constexpr int kSteps = 20;
  for (int i = 0; i <= kSteps; ++i) {
    // The steps tried range from so wide that the upper levels are unused to so fine that the ends
    // are clipped.
    const float levels = top - 1 + static_cast<float>(i) * 0.12F * (1 + top / 31);
    const LevelSums sums = level_sums<N>(x, range.low, levels / width, 0, top);
    const float determinant = static_cast<float>(N) * sums.qq - sums.q * sums.q;
    if (determinant <= 0) continue;
    AffineFit fit{(static_cast<float>(N) * sums.xq - total * sums.q) / determinant,
                  (total * sums.qq - sums.q * sums.xq) / determinant};
    if (offset_down && fit.offset > 0) fit = {sums.xq / sums.qq, 0};
    if (!(fit.scale > 0)) continue;
    const float error = stored_error<N>(x, fit.scale, fit.offset, 0, top);
    if (error < best_error) {
      best_error = error;
      best = fit;
    }
  }
  return best;
}

// Sets the final levels for the given scale and offset.
template <int N>
void set_levels(const float* x, float scale, float offset, float bottom, float top, float* levels) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  for (int i = 0; i < N; i += kFitLanes) {
    const FitLanes level = levels_of(load_lanes(x + i), offset, inverse, bottom, top);
    std::memcpy(levels + i, &level, sizeof(level));
  }
}

}  // namespace spillway
