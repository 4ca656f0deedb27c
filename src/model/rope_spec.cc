// SPDX-License-Identifier: Apache-2.0
#include "model/rope_spec.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace spillway {

std::vector<double> base_inverse_frequencies(const RopeSpec& rope) {
  std::vector<double> out;
  for (int i = 0; i < rope.dims; i += 2)
    out.push_back(std::pow(rope.theta, -static_cast<double>(i) / rope.dims));
  return out;
}

void set_plain_rope(RopeSpec& rope, double theta, int dims) {
  rope.style = RopeStyle::kHalves;
  rope.theta = theta;
  rope.dims = dims;
  const std::vector<double> frequencies = base_inverse_frequencies(rope);
  rope.inverse_frequencies.assign(frequencies.begin(), frequencies.end());
}

std::vector<float> rope_divisors(const RopeSpec& rope) {
  std::vector<float> divisors;
  const auto plain = base_inverse_frequencies(rope);
  for (size_t i = 0; i < plain.size(); ++i)
    divisors.push_back(static_cast<float>(plain[i] / double{rope.inverse_frequencies.at(i)}));
  return divisors;
}

void apply_rope_divisors(std::span<const float> divisors,
                         std::vector<double>& inverse_frequencies) {
  for (size_t i = 0; i < inverse_frequencies.size(); ++i)
    inverse_frequencies[i] /= double{divisors[i]};
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

std::vector<double> yarn_inverse_frequencies(const YarnRopeScaling& scaling, const RopeSpec& rope) {
  // The pair that turns this often in the original context, as a fraction.
  const auto pair_of = [&](double turns) {
    return rope.dims * std::log(scaling.original_context / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double first = pair_of(scaling.fast), last = pair_of(scaling.slow);
  if (scaling.whole_pairs) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, rope.dims - 1.0);
  if (first == last) last += 0.001;
  std::vector<double> frequencies = base_inverse_frequencies(rope);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched =
        std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    frequencies[i] *= stretched / scaling.factor + (1 - stretched);
  }
  return frequencies;
}

double yarn_attention_factor(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

double longrope_attention_factor(double factor, double original_context) {
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original_context));
}

}  // namespace spillway
