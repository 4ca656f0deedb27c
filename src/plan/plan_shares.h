// SPDX-License-Identifier: Apache-2.0
// Rounds the shares that a search finds, of the weights, the KV and the hidden states in each
// memory, to what the runtime has: thousandths of the weights, whole sequences, whole tokens.
#pragma once

#include <cstdint>

#include "plan/search_request.h"

namespace spillway {

// Weight shares are thousandths: a home, the memory in which it lives, is given to whole matrices,
// of which a model has hundreds.
inline constexpr double kWeightSteps = 1000;

// Keeps a reference to the request. Thread-safe.
class PlanShares {
 public:
  explicit PlanShares(const SearchRequest& request)
      : request_(request), discrete_(request.hardware.has_device()) {}

  // These set the shares of a plan. The rest is on disk if there is one; without a GPU, `device` is
  // the host's memory. Shares that the request fixes (SearchRequest::given) stay as they are.
  void set_weights(Plan& plan, double device, double host) const;
  void set_kv(FoundPlan& found, double device, double host) const;
  // Sets the shares of the hidden states between layers. Those of decoding tokens always stay on
  // the device, because a prompt's are offloaded only in the prompt's own step.
  static void set_hidden_states(FoundPlan& found, double device, int64_t step_tokens);
  static double least_hidden_states(const FoundPlan& found, int64_t step_tokens);
  // Rounds a share of the sequences in host memory to a whole number of sequences, unless they are
  // attended to in partitions.
  static double whole_sequences(double share, const FoundPlan& found);

  // Returns into how many equal units KV can be divided: whole sequences, or for a single sequence
  // that may be in several memories the runs of blocks at which it can be split (footprint.h).
  static double kv_partitions(const FoundPlan& found);
  // Returns whether all KV must have one home: if the CPU must attend to every sequence, none may
  // be on the device, where another processor would.
  bool kv_has_one_home(const Plan& plan) const {
    return discrete_ && request_.same_for_every_sequence && plan.attention == AttentionPlace::kCpu;
  }

 private:
  const SearchRequest& request_;
  bool discrete_;
};

}  // namespace spillway
