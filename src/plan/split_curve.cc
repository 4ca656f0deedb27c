// SPDX-License-Identifier: Apache-2.0
#include "plan/split_curve.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace spillway {

double SplitCurve::crossing() const {
  const double both = cpu.all_s + link.all_s;
  if (both <= 0) return 0;
  return std::clamp((link.fixed_s + link.all_s - cpu.fixed_s) / both, 0.0, 1.0);
}

// Fits the line by least squares.
SplitLine fit_line(std::span<const std::pair<double, double>> points) {
  SPW_ASSERT(points.size() >= 2);
  const auto count = static_cast<double>(points.size());
  double x = 0, y = 0;
  for (const auto& [share, seconds] : points) x += share / count, y += seconds / count;
  double xx = 0, xy = 0;
  for (const auto& [share, seconds] : points) {
    xx += (share - x) * (share - x);
    xy += (share - x) * (seconds - y);
  }
  SPW_ASSERT(xx > 0);
  // Measurements are noisy, but neither the fixed cost nor the cost of rows can be negative.
  double slope = std::max(0.0, xy / xx);
  if (slope == 0 || y - slope * x < 0) slope = x > 0 ? y / x : 0;
  return {std::max(0.0, y - slope * x), slope};
}

const SplitCurve* try_split_curve(std::span<const SplitCurve> curves, const SplitShape& shape,
                                  double tokens) {
  const SplitCurve* best = nullptr;
  double nearest = 0;
  for (const SplitCurve& curve : curves) {
    if (curve.shape != shape) continue;
    const double away = std::fabs(std::log(static_cast<double>(curve.tokens) / tokens));
    if (best == nullptr || away < nearest) best = &curve, nearest = away;
  }
  // Rates of one token do not apply to hundreds of tokens.
  constexpr double kFar = 1.5;  // as a logarithm: a factor of e^1.5
  return nearest <= kFar ? best : nullptr;
}

}  // namespace spillway
