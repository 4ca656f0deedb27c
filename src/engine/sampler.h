// SPDX-License-Identifier: Apache-2.0
// From logits to the next token.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/ops.h"
#include "engine/sampling_params.h"

namespace spillway {

// One per sequence; not thread-safe. The draw at a position depends on (seed, position) and the
// logits alone, so the same seed gives the same text however sequences are batched.
class Sampler {
 public:
  // `prompt` counts for the repetition penalty.
  Sampler(SamplingParams params, std::span<const TokenId> prompt);

  // Chooses the token at `position` from its logits [vocab].
  SampledToken sample(std::span<const float> logits, int64_t position);
  // The same for logits in a device's memory: what Ops::sample() is to do, valid until the next
  // call.
  SampleRow sample_row(int64_t position);
  // The chosen token is part of the answer: it counts for the penalties.
  void accept(TokenId id);
  // None of these tokens is drawn before so many others were accepted.
  void forbid_until(int64_t accepted, std::vector<TokenId> ids);
  bool wants_logprobs() const { return params_.logprobs >= 0; }
  // For tokens that may come next: it draws as this one would, and leaves this one as it is.
  Sampler fork() const;

 private:
  Sampler() = default;
  void see(TokenId id);
  void collect_adjustments();
  void adjust(std::span<const float> logits);
  TokenId draw(int64_t position);

  SamplingParams params_;
  int64_t accepted_ = 0;
  int64_t forbidden_until_ = 0;
  std::vector<TokenId> forbidden_;
  std::unordered_map<TokenId, int> seen_;      // in the window's part of prompt and answer
  std::deque<TokenId> window_;                 // these in order, where a window is asked for
  std::unordered_map<TokenId, int> answered_;  // in the answer
  std::vector<LogitAdjustment> adjustments_;
  std::vector<float> logits_;
  struct Candidate {
    TokenId id;
    float scaled;  // its adjusted logit below the largest one, by temperature
  };
  static bool more_likely(const Candidate& a, const Candidate& b);
  std::vector<Candidate> candidates_;
};

// Uniform in [0, 1), a pure function of its arguments.
double counter_uniform(uint64_t seed, uint64_t counter);

// Whether a token can be drawn: none is NaN or infinity, and not all are minus infinity, which is
// "never" for the tokens that have it. A model has computed something wrong otherwise.
bool are_usable(std::span<const float> logits);

}  // namespace spillway
