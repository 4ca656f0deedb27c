// SPDX-License-Identifier: Apache-2.0
// Describes rotary positions: which elements of a head are rotated, and how fast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/op_kinds.h"

namespace spillway {

struct RopeSpec {
  RopeStyle style = RopeStyle::kHalves;
  int dims = 0;  // leading elements of a head that are rotated; even
  double theta = 10000;
  // One per rotated pair, scaling (linear, Llama 3) already applied. Filled in by the family.
  std::vector<float> inverse_frequencies;
  // Sine and cosine are multiplied by it, and so q . k by its square: the attention factor of YaRN
  // and LongRoPE.
  float scale = 1;
  bool operator==(const RopeSpec&) const = default;
};

// Returns 1 / theta^(2i / dims) for each rotated pair.
std::vector<double> base_inverse_frequencies(const RopeSpec& rope);

// Sets rope so that `dims` elements of a head are rotated as halves, without scaling.
void set_plain_rope(RopeSpec& rope, double theta, int dims);

// Returns the divisor of each plain frequency.
std::vector<float> rope_divisors(const RopeSpec& rope);
// Divides each frequency by its divisor: what LongRoPE does, and GGUF for Llama 3.
void apply_rope_divisors(std::span<const float> divisors, std::vector<double>& inverse_frequencies);
enum class RopeScalingKind : uint8_t {
  kNone,
  kLinear,  // all divisors are equal
  kUneven,  // they differ, as Llama 3's do
};
RopeScalingKind rope_scaling_kind(const RopeSpec& rope);

// Llama 3's scaling stretches long wavelengths by `factor`, keeps short ones, and blends
// those between.
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_context = 8192;
};
void apply_llama3_scaling(const Llama3RopeScaling& scaling,
                          std::vector<double>& inverse_frequencies);

// YaRN stretches by `factor` the pairs that turn less than `slow` times in the original context,
// keeps those that turn more than `fast` times, and blends those between, in the order of pairs.
struct YarnRopeScaling {
  double factor = 1;
  double fast = 32, slow = 1;
  double original_context = 4096;
  bool whole_pairs = true;  // the blend begins and ends at a whole pair
};
// Returns the frequencies of a rope whose plain ones are base_inverse_frequencies().
std::vector<double> yarn_inverse_frequencies(const YarnRopeScaling& scaling, const RopeSpec& rope);
// Returns YaRN's usual RopeSpec::scale.
double yarn_attention_factor(double factor, double mscale = 1);
// Returns LongRoPE's usual RopeSpec::scale, for a context that is `factor` times the original one.
double longrope_attention_factor(double factor, double original_context);

}  // namespace spillway
