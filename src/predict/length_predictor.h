// SPDX-License-Identifier: Apache-2.0
// The interface of predictors of an answer's length (S3, section 3).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "predict/length_buckets.h"
#include "text/token_id.h"

namespace spillway {

// The part of a request that predictors see. Refers to the caller's text and tokens.
struct LengthQuery {
  std::string_view text = {};            // the prompt; empty: only tokens are known
  std::span<const TokenId> tokens = {};  // the prompt's tokens, used where there is no text
  int64_t most_tokens = 0;               // the request's limit on answer tokens; 0: none
};

// Not thread-safe; OnlineTrainer shares a predictor among threads.
class LengthPredictor {
 public:
  virtual ~LengthPredictor() = default;
  virtual LengthDistribution predict(const LengthQuery& query) const = 0;
  // Learns from an answer of `tokens` tokens that ended by itself, before any limit.
  virtual void learn(const LengthQuery& query, int64_t tokens) = 0;
};

}  // namespace spillway
