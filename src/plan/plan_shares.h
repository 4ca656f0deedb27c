// SPDX-License-Identifier: Apache-2.0
// Shares of a plan that a search finds, rounded to what the runtime has: thousandths of the
// weights, whole sequences, whole tokens.
#pragma once

#include <cstdint>

#include "plan/search_request.h"

namespace spillway {

// Homes are whole matrices, of which there are hundreds.
inline constexpr double kWeightSteps = 1000;

// Refers to the request. Thread-safe.
class PlanShares {
 public:
  explicit PlanShares(const SearchRequest& request)
      : request_(request), apart_(request.hardware.has_device()) {}

  // The rest is on disk, where there is one; without a GPU `device` is the host's memory.
  // Shares that the request gives stay as given.
  void set_weights(Plan& plan, double device, double host) const;
  void set_kv(FoundPlan& found, double device, double host) const;
  // Of the hidden states between layers; those of tokens that decode stay on the device, as a
  // prompt's move in their own step alone.
  static void set_hidden_states(FoundPlan& found, double device, int64_t step_tokens);
  static double least_hidden_states(const FoundPlan& found, int64_t step_tokens);
  // Of the sequences in host memory, a whole number, unless they come in parts.
  static double whole_sequences(double share, const FoundPlan& found);

  // Into how many equal parts KV can be shared out: whole sequences, or of a single one that may be
  // in several memories what is cut from it (footprint.h).
  static double kv_parts(const FoundPlan& found);
  // Sequences that the CPU attends to alone, as those on the device would be attended to by another
  // processor.
  bool kv_has_one_home(const Plan& plan) const {
    return apart_ && request_.same_for_every_sequence && plan.attention == AttentionPlace::kCpu;
  }

 private:
  const SearchRequest& request_;
  bool apart_;
};

}  // namespace spillway
