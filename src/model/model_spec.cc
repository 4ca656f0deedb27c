// SPDX-License-Identifier: Apache-2.0
#include "model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace spillway {
namespace {

void check_range(const std::string& where, const char* field, int64_t value, int64_t low,
                 int64_t high) {
  SPW_CHECK(
      value >= low && value <= high, kInvalidArgument,
      "{}: {} is {}, which is not within {} to {}; the file is damaged or not of a known kind",
      where, field, value, low, high);
}

}  // namespace

void validate(const ModelSpec& spec, const std::string& where) {
  // The bounds are generous (far above any published model) and small enough that products fit in
  // 63 bits.
  check_range(where, "vocabulary size", spec.vocab_size, 1, 1 << 24);
  check_range(where, "hidden size", spec.hidden, 1, 1 << 20);
  check_range(where, "embedding size", spec.embedding_dim, 1, 1 << 20);
  check_range(where, "layer count", spec.layers, 1, 4096);
  check_range(where, "head count", spec.heads, 1, 1 << 14);
  check_range(where, "KV head count", spec.kv_heads, 1, spec.heads);
  check_range(where, "head size", spec.head_dim, 1, 1 << 12);
  check_range(where, "feed-forward size", spec.ffn, 1, 1 << 22);
  check_range(where, "context length", spec.max_context, 1, int64_t{1} << 30);
  check_range(where, "sliding window", spec.sliding_window, 0, int64_t{1} << 30);
  SPW_CHECK(spec.heads % spec.kv_heads == 0, kInvalidArgument,
            "{}: {} heads are not a multiple of {} KV heads", where, spec.heads, spec.kv_heads);
  SPW_CHECK(std::isfinite(spec.norm_eps) && spec.norm_eps >= 0 && spec.norm_eps < 1,
            kInvalidArgument, "{}: norm epsilon {} makes no sense", where, spec.norm_eps);
  if (spec.position == PositionKind::kRope) {
    check_range(where, "rotary size", spec.rope.dims, 2, spec.head_dim);
    SPW_CHECK(spec.rope.dims % 2 == 0, kInvalidArgument, "{}: rotary size {} is odd", where,
              spec.rope.dims);
    SPW_CHECK(std::isfinite(spec.rope.theta) && spec.rope.theta > 0, kInvalidArgument,
              "{}: rope base frequency {} makes no sense", where, spec.rope.theta);
  }
}

std::vector<double> base_inverse_frequencies(const RopeSpec& rope) {
  std::vector<double> out;
  for (int i = 0; i < rope.dims; i += 2)
    out.push_back(std::pow(rope.theta, -static_cast<double>(i) / rope.dims));
  return out;
}

std::vector<float> rope_divisors(const RopeSpec& rope) {
  std::vector<float> divisors;
  const auto plain = base_inverse_frequencies(rope);
  for (size_t i = 0; i < plain.size(); ++i)
    divisors.push_back(static_cast<float>(plain[i] / double{rope.inverse_frequencies.at(i)}));
  return divisors;
}

RopeScalingKind rope_scaling_kind(const RopeSpec& rope) {
  const auto divisors = rope_divisors(rope);
  const auto differs_from = [](float value) {
    return [value](float divisor) { return std::fabs(divisor - value) > 1e-5F * value; };
  };
  if (std::ranges::none_of(divisors, differs_from(1))) return RopeScalingKind::kNone;
  const bool uneven = std::ranges::any_of(divisors, differs_from(divisors.front()));
  return uneven ? RopeScalingKind::kUneven : RopeScalingKind::kLinear;
}

void apply_llama3_scaling(const Llama3RopeScaling& scaling,
                          std::vector<double>& inverse_frequencies) {
  const double low_wavelength = scaling.original_context / scaling.low_freq_factor;
  const double high_wavelength = scaling.original_context / scaling.high_freq_factor;
  for (double& frequency : inverse_frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < high_wavelength) continue;
    if (wavelength > low_wavelength) {
      frequency /= scaling.factor;
      continue;
    }
    const double blend = (scaling.original_context / wavelength - scaling.low_freq_factor) /
                         (scaling.high_freq_factor - scaling.low_freq_factor);
    frequency = (1 - blend) * frequency / scaling.factor + blend * frequency;
  }
}

}  // namespace spillway
