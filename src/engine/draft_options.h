// SPDX-License-Identifier: Apache-2.0
// Which tokens are proposed before they are computed, and what checking them costs.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tensor/state_rule.h"

namespace spillway {

// Drafts of a sequence in one step.
inline constexpr int kMostDrafts = 8;
static_assert(kMostDrafts <= kMostCutBack);

enum class DraftKind : uint8_t {
  kOff,
  kLookup,  // what followed the last tokens where they stood before (engine/lookup_drafts.h)
  kDrawn,   // any tokens, accepted by chance: for benchmarks of models with random weights
};

struct DraftOptions {
  DraftKind kind = DraftKind::kOff;
  // With kDrawn: how likely a draft is accepted if those before it are, and how many are proposed
  // in each step, 1 to kMostDrafts.
  double acceptance = 0;
  int tokens = 4;

  bool is_on() const { return kind != DraftKind::kOff; }
  int most_tokens() const {
    return kind == DraftKind::kOff ? 0 : kind == DraftKind::kDrawn ? tokens : kMostDrafts;
  }
};

// How much longer a step takes with more tokens.
class DraftCosts {
 public:
  // A step with more tokens costs nothing more.
  DraftCosts() = default;
  // Tokens of a step, ascending from 1, and its seconds.
  explicit DraftCosts(std::vector<std::pair<int, double>> steps) : steps_(std::move(steps)) {}

  // A step with `tokens` tokens of each of `sequences`, by one with a token of each.
  double ratio(int sequences, int tokens) const;

 private:
  double seconds(int tokens) const;

  std::vector<std::pair<int, double>> steps_;
};

}  // namespace spillway
