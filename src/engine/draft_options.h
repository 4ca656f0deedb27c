// SPDX-License-Identifier: Apache-2.0
// Options for draft tokens, which are proposed before they are computed, and the cost of checking
// them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tensor/state_rule.h"

namespace spillway {

// The most drafts of a sequence in one step.
inline constexpr int kMostDrafts = 8;
static_assert(kMostDrafts <= kMostCutBack);

enum class DraftKind : uint8_t {
  kOff,
  kLookup,  // what followed an earlier occurrence of the last tokens (engine/lookup_drafts.h)
  kDrawn,   // arbitrary tokens, accepted at random: for benchmarks of models with random weights
};

struct DraftOptions {
  DraftKind kind = DraftKind::kOff;
  // With kDrawn: the probability that a draft is accepted if those before it are, and how many are
  // proposed in each step, 1 to kMostDrafts.
  double acceptance = 0;
  int tokens = 4;

  bool is_on() const { return kind != DraftKind::kOff; }
  int most_tokens() const {
    return kind == DraftKind::kOff ? 0 : kind == DraftKind::kDrawn ? tokens : kMostDrafts;
  }
};

// Estimates how much longer a step takes with more tokens.
class DraftCosts {
 public:
  // Makes costs by which additional tokens are free.
  DraftCosts() = default;
  // `steps`: pairs of the tokens of a step, ascending from 1, and its seconds.
  explicit DraftCosts(std::vector<std::pair<int, double>> steps) : steps_(std::move(steps)) {}

  // Returns the time of a step with `tokens` tokens of each of `sequences` sequences, divided by
  // the time of one with a single token of each.
  double ratio(int sequences, int tokens) const;

 private:
  double seconds(int tokens) const;

  std::vector<std::pair<int, double>> steps_;
};

}  // namespace spillway
