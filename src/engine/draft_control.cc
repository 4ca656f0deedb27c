// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_control.h"

#include <algorithm>

namespace spillway {
namespace {

// Drafts are left out unless they raise the tokens per second by this factor: neither the prices
// nor the acceptance rate are known any better.
constexpr double kLeastGain = 1.05;
constexpr double kMemory = 0.9;      // weight of a step relative to the next one
constexpr double kOptimistic = 0.8;  // acceptance rate that a text which repeats itself may have

}  // namespace

double DraftCosts::seconds(int tokens) const {
  const auto behind = std::ranges::lower_bound(steps_, tokens, {}, &std::pair<int, double>::first);
  if (behind == steps_.begin()) return behind->second;
  if (behind == steps_.end()) return steps_.back().second * tokens / steps_.back().first;
  const auto& [before_tokens, before_s] = *std::prev(behind);
  const double share =
      static_cast<double>(tokens - before_tokens) / (behind->first - before_tokens);
  return before_s + share * (behind->second - before_s);
}

double DraftCosts::ratio(int sequences, int tokens) const {
  if (steps_.empty()) return 1;
  return std::max(1.0, seconds(sequences * tokens) / seconds(sequences));
}

int DraftControl::best_number(const DraftCosts& costs, int sequences, int found,
                              double acceptance) {
  double best_gain = kLeastGain;
  int best = 0;
  double tokens = 1,
         reached = 1;  // expected tokens of the step; probability that the first k drafts are right
  for (int k = 1; k <= found; ++k) {
    reached *= acceptance;
    tokens += reached;
    const double gain = tokens / costs.ratio(sequences, 1 + k);
    if (gain <= best_gain) continue;
    best_gain = gain;
    best = k;
  }
  return best;
}

int DraftControl::choose(const DraftCosts& costs, int sequences, int found) {
  if (left_ > 0) {
    --left_;
    return 0;
  }
  if (const int best = best_number(costs, sequences, found, right_ / compared_); best > 0)
    return best;
  if (best_number(costs, sequences, found, kOptimistic) == 0) return 0;
  left_ = pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
  return 1;
}

void DraftControl::note(int proposed, int accepted) {
  if (proposed == 0) return;
  // Drafts after the first wrong one were not compared.
  const int compared = std::min(accepted + 1, proposed);
  compared_ = kMemory * compared_ + compared;
  right_ = kMemory * right_ + accepted;
  if (accepted > 0) pause_ = kShortestPause;
}

}  // namespace spillway
