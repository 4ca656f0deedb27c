// SPDX-License-Identifier: Apache-2.0
// Samples the next token from logits.
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
  // Returns what Ops::sample() needs to do the same for logits in a device's memory; valid until
  // the next call.
  SampleRow sample_row(int64_t position);
  // Takes the chosen token as part of the answer: it counts for the penalties.
  void accept(TokenId id);
  // Forbids these tokens until `accepted` tokens have been accepted.
  void forbid_until(int64_t accepted, std::vector<TokenId> ids);
  bool wants_logprobs() const { return params_.logprobs >= 0; }
  // Returns a sampler for tokens that may come next: it draws as this one would, and leaves this
  // one as it is.
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
  std::unordered_map<TokenId, int>
      seen_;  // how often a token occurs in the window's part of prompt and answer
  std::deque<TokenId> window_;                 // these tokens in order, if there is a window
  std::unordered_map<TokenId, int> answered_;  // how often a token occurs in the answer
  std::vector<LogitAdjustment> adjustments_;
  std::vector<float> logits_;
  struct Candidate {
    TokenId id;
    float scaled;  // (its adjusted logit - the largest one) / temperature
  };
  static bool more_likely(const Candidate& a, const Candidate& b);
  std::vector<Candidate> candidates_;
};

// Returns a number that is uniform in [0, 1), a pure function of the arguments.
double counter_uniform(uint64_t seed, uint64_t counter);

// Returns whether a token can be sampled: no logit is NaN or plus infinity, and not all are minus
// infinity, which means "never" for its token. Otherwise the model has computed something wrong.
bool are_usable(std::span<const float> logits);

}  // namespace spillway
