// SPDX-License-Identifier: Apache-2.0
// A request's parameters for sampling the next token.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "text/token_id.h"

namespace spillway {

// Applied in this order: logit bias, penalties, temperature, top-k, top-p, min-p, and a draw that
// walks the tokens left in the order of their ids.
struct SamplingParams {
  float temperature = 0;  // 0 = the most likely token
  int top_k = 0;          // keep this many; 0 = all
  float top_p = 1;        // keep the smallest set with at least this probability
  float min_p = 0;        // drop tokens below this share of the most likely one's probability
  float repetition_penalty =
      1;  // divides positive and multiplies negative logits of tokens in prompt and answer
  // repetition_penalty applies to this number of the last tokens; 0 = all
  int repetition_window = 0;
  float presence_penalty = 0;   // taken off tokens in the answer, once
  float frequency_penalty = 0;  // taken off tokens in the answer, once for each time they occur
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  uint64_t seed = 0;
  int logprobs = -1;  // -1: none; 0: of the chosen token; n: also of the n most likely
};

// Throws kInvalidArgument naming the first parameter that makes no sense for a vocabulary of this
// size.
void validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace spillway
