// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/references.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

namespace spillway::parity {
namespace {

// Vectors are indexed by int64_t throughout.
template <class T>
const T& at(const std::vector<T>& values, int64_t i) {
  return values[static_cast<size_t>(i)];
}

// Uses four sums, so that additions do not wait for each other.
double dot(const float* a, const float* b, int64_t count) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t j = 0; j < 4; ++j) sums[j] += double{a[i + j]} * b[i + j];
  }
  for (; i < count; ++i) sums[0] += double{a[i]} * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

Doubles linear_reference(const std::vector<float>& x, const std::vector<float>& w,
                         const std::vector<float>& bias, const std::vector<float>& start,
                         int64_t tokens, int64_t n, int64_t k) {
  Doubles out;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t row = 0; row < n; ++row) {
      double sum = start.empty() ? 0 : at(start, t * n + row);
      if (!bias.empty()) sum += at(bias, row);
      out.push_back(sum + dot(x.data() + t * k, w.data() + row * k, k));
    }
  }
  return out;
}

Doubles norm_reference(NormKind kind, const std::vector<float>& x, const std::vector<float>& weight,
                       const std::vector<float>& bias, double eps, int64_t rows, int64_t dim) {
  Doubles out;
  for (int64_t t = 0; t < rows; ++t) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < dim; ++i) mean += at(x, t * dim + i);
    mean = kind == NormKind::kLayer ? mean / static_cast<double>(dim) : 0;
    for (int64_t i = 0; i < dim; ++i) square += std::pow(at(x, t * dim + i) - mean, 2);
    const double scale = 1 / std::sqrt(square / static_cast<double>(dim) + eps);
    for (int64_t i = 0; i < dim; ++i) {
      const double value = (at(x, t * dim + i) - mean) * scale * at(weight, i);
      out.push_back(bias.empty() ? value : value + at(bias, i));
    }
  }
  return out;
}

double activation_reference(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kRelu:
      return std::max(x, 0.0);
    case ActivationKind::kGelu:
      return x * std::erfc(-x / std::numbers::sqrt2) / 2;
    case ActivationKind::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case ActivationKind::kSilu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

Doubles rope_reference(const std::vector<float>& x, const std::vector<int32_t>& positions,
                       const std::vector<float>& inverse_frequency, double scale, int64_t head_dim,
                       RopeStyle style) {
  Doubles out(x.begin(), x.end());
  const auto tokens = static_cast<int64_t>(positions.size());
  const auto pairs = static_cast<int64_t>(inverse_frequency.size());
  const int64_t width = static_cast<int64_t>(x.size()) / tokens;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t head = 0; head < width; head += head_dim) {
      for (int64_t i = 0; i < pairs; ++i) {
        const double angle = double{at(inverse_frequency, i)} * at(positions, t);
        const bool together = style == RopeStyle::kInterleaved;
        const int64_t first = t * width + head + (together ? 2 * i : i);
        const int64_t second = first + (together ? 1 : pairs);
        const double a = at(x, first), b = at(x, second);
        out[static_cast<size_t>(first)] = scale * (a * std::cos(angle) - b * std::sin(angle));
        out[static_cast<size_t>(second)] = scale * (a * std::sin(angle) + b * std::cos(angle));
      }
    }
  }
  return out;
}

namespace {

// Sets all but the `share` largest scores to minus infinity, and returns the gap between these and
// the others.
double hide_all_but_top(Doubles& scores, double share) {
  const auto count = static_cast<double>(scores.size());
  const auto k = std::max<size_t>(1, static_cast<size_t>(std::ceil(share * count - 1e-6 * count)));
  if (k >= scores.size()) return std::numeric_limits<double>::infinity();
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  const double gap = scores[order[k - 1]] - scores[order[k]];
  for (size_t i = k; i < order.size(); ++i)
    scores[order[i]] = -std::numeric_limits<double>::infinity();
  return gap;
}

}  // namespace

Doubles attention_reference(const float* q, const std::vector<float>& k,
                            const std::vector<float>& v, int64_t keys, int64_t heads,
                            int64_t kv_heads, int64_t head_dim, double scale, int64_t window,
                            double top_k, Doubles* gaps) {
  const int64_t first = window > 0 ? std::max<int64_t>(0, keys - window) : 0;
  Doubles out;
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t kv_head = head / (heads / kv_heads);
    Doubles scores;
    for (int64_t j = first; j < keys; ++j) {
      const float* const key = k.data() + (j * kv_heads + kv_head) * head_dim;
      scores.push_back(scale * dot(q + head * head_dim, key, head_dim));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    if (top_k > 0) {
      const double gap = hide_all_but_top(scores, top_k);
      if (gaps != nullptr) gaps->push_back(gap);
    }
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    Doubles values(static_cast<size_t>(head_dim));
    for (int64_t j = first; j < keys; ++j) {
      const double weight = at(scores, j - first);
      const float* const value = v.data() + (j * kv_heads + kv_head) * head_dim;
      for (int64_t i = 0; i < head_dim; ++i) values[static_cast<size_t>(i)] += weight * value[i];
    }
    for (const double value : values) out.push_back(value / sum);
  }
  return out;
}

}  // namespace spillway::parity
