// SPDX-License-Identifier: Apache-2.0
// Computes the log-probabilities of tokens from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spillway {

inline constexpr int kMostLogprobs = 100;  // per row, in addition to the chosen token's

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// Natural logarithms of the model's own probabilities, before bias, penalties and temperature.
struct Logprobs {
  float chosen = 0;
  std::vector<TokenLogprob> top;  // largest logit first, the lower id among equal ones
};

// Computes them in double precision, which defines the result; devices compute the same up to
// rounding. `top` is how many of the most likely tokens are returned, at most all.
Logprobs compute_logprobs(std::span<const float> logits, int32_t chosen, int top);

// Returns log(sum(exp(logits))), accumulated in double.
double log_sum_exp(std::span<const float> logits);

}  // namespace spillway
