// SPDX-License-Identifier: Apache-2.0
#include "device/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace spillway {

double log_sum_exp(std::span<const float> logits) {
  float top = -std::numeric_limits<float>::infinity();
  for (const float value : logits) top = std::max(top, value);
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value) - top);
  return top + std::log(sum);
}

Logprobs compute_logprobs(std::span<const float> logits, int32_t chosen, int top) {
  const double total = log_sum_exp(logits);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(logits[static_cast<size_t>(id)] - total);
  };
  Logprobs out{.chosen = logprob(chosen), .top = {}};
  if (top <= 0) return out;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  // Tokens are ordered by logits because different logits may round to equal log-probabilities.
  const auto more_likely = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto end = ids.begin() + std::min(static_cast<std::ptrdiff_t>(ids.size()),
                                          static_cast<std::ptrdiff_t>(top));
  std::partial_sort(ids.begin(), end, ids.end(), more_likely);
  for (auto id = ids.begin(); id != end; ++id) out.top.push_back({*id, logprob(*id)});
  return out;
}

}  // namespace spillway
