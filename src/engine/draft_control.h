// SPDX-License-Identifier: Apache-2.0
// Decides how many drafts are worth their computation.
#pragma once

#include "engine/draft_options.h"

namespace spillway {

// One per sequence; not thread-safe. Knows how many of its drafts were accepted lately, and chooses
// the number with the most expected tokens per second. If no number pays, one draft is tried again
// after pauses that grow to kLongestPause steps.
class DraftControl {
 public:
  static constexpr int kShortestPause = 4, kLongestPause = 64;

  // Returns how many of the `found` drafts to propose in the next step, which computes `sequences`
  // sequences.
  int choose(const DraftCosts& costs, int sequences, int found);
  // Notes that a step had `proposed` drafts of which the first `accepted` were right.
  void note(int proposed, int accepted);

 private:
  // Returns the number of drafts that pays most, or 0 if none pays.
  static int best_number(const DraftCosts& costs, int sequences, int found, double acceptance);

  // How many drafts were compared with the sampled token, and how many of them were that token. The
  // older ones count less. A sequence begins with a little trust, which a few wrong drafts use up.
  double compared_ = 1.5, right_ = 1;
  int pause_ = kShortestPause;  // steps of the next pause
  int left_ = 0;                // steps that are left of this one
};

}  // namespace spillway
