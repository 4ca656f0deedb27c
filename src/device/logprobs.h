// SPDX-License-Identifier: Apache-2.0
// What logits say of tokens: the log-probabilities that an answer can come with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spillway {

inline constexpr int kMostLogprobs = 100;  // of a row, beside the chosen token's

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// Natural logarithms of the model's own probabilities, before bias, penalties and temperature.
struct Logprobs {
  float chosen = 0;
  std::vector<TokenLogprob> top;  // the largest logit first, of equal ones the lower id
};

// The definition, in double precision; devices compute the same up to rounding. `top` most likely
// ones, or all there are.
Logprobs compute_logprobs(std::span<const float> logits, int32_t chosen, int top);

// log(sum(exp(logits))), accumulated in double.
double log_sum_exp(std::span<const float> logits);

}  // namespace spillway
