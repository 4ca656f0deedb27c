// SPDX-License-Identifier: Apache-2.0
#include "measure/inflection_points.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace spillway {
namespace {

// The search goes beyond 64 only if few-token kernels still win there.
constexpr int kTokens[] = {2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256};
// Repeated GEMV reads all weights for each token: it hardly wins beyond the first of these, and is
// never chosen beyond the last.
constexpr std::span<const int> kFewTokens = std::span(kTokens).first(5);
constexpr double kClearlyFaster = 0.98;

// Returns the number of tokens at which the ratio new / old, falling from `before` to `here`,
// passes 1.
int crossing(int before_m, double before, int here_m, double here) {
  const double way = std::clamp((before - 1) / (before - here), 0.0, 1.0);
  return before_m + std::max(1, static_cast<int>(std::ceil(way * (here_m - before_m))));
}

// Returns the first m from which the new kind is faster, given new / old at each of `tokens`.
template <class Ratio>
std::optional<int> try_takeover(std::span<const int> tokens, Ratio&& ratio) {
  double earlier = 0, before = 0;  // the ratios at tokens[i - 2] and tokens[i - 1]
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double here = ratio(tokens[i]);
    const bool twice = i > 0 && before < kClearlyFaster && here < kClearlyFaster;
    if (twice) {
      if (i == 1) return tokens[0];
      return crossing(tokens[i - 2], earlier, tokens[i - 1], before);
    }
    earlier = before;
    before = here;
  }
  return std::nullopt;
}

}  // namespace

std::span<const int> compared_tokens() { return kTokens; }

InflectionPoints find_inflection_points(const CompareKernels& compare, bool has_gemm) {
  const auto ratio_to = [&](LinearKernel newer, LinearKernel older, int m) {
    const KernelTimes times = compare(older, newer, m);
    return times.second / times.first;
  };
  InflectionPoints points{.m1 = kMinInflection, .m2 = kNeverInflection};
  // The common case is decided first: flat loses only if repeated GEMV clearly beats it twice.
  const auto gemv_wins = [&](int m) {
    return ratio_to(LinearKernel::kGemv, LinearKernel::kFlat, m) < kClearlyFaster;
  };
  if (gemv_wins(kTokens[0]) && gemv_wins(kTokens[1])) {
    points.m1 = try_takeover(kFewTokens, [&](int m) {
                  return ratio_to(LinearKernel::kFlat, LinearKernel::kGemv, m);
                }).value_or(kFewTokens.back() + 1);
  }
  if (has_gemm) {
    points.m2 =
        try_takeover(kTokens, [&](int m) {
          return ratio_to(LinearKernel::kGemm, kernel_at({points.m1, kNeverInflection}, m), m);
        }).value_or(kNeverInflection);
  }
  return points;
}

}  // namespace spillway
