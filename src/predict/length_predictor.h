// SPDX-License-Identifier: Apache-2.0
// How long an answer will be, before it is there (S3, section 3).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "predict/length_buckets.h"
#include "text/token_id.h"

namespace spillway {

// What is known of a request. Refers to the caller's text and tokens.
struct LengthQuery {
  std::string_view text = {};            // what is asked; empty: only tokens are known
  std::span<const TokenId> tokens = {};  // looked at where there is no text
  int64_t most_tokens = 0;               // of the answer, as the request allows; 0: any
};

// Not thread-safe; OnlineTrainer shares one among threads.
class LengthPredictor {
 public:
  virtual ~LengthPredictor() = default;
  virtual LengthDistribution predict(const LengthQuery& query) const = 0;
  // An answer had so many tokens, and was not cut off.
  virtual void learn(const LengthQuery& query, int64_t tokens) = 0;
};

}  // namespace spillway
