// SPDX-License-Identifier: Apache-2.0
// How many drafts are worth their computation.
#pragma once

#include "engine/draft_options.h"

namespace spillway {

// One per sequence; not thread-safe. Knows how many of its drafts were accepted of late, and
// chooses the number for which the most tokens a second are expected. Where none pays, one draft is
// tried again after pauses that grow to kLongestPause steps.
class DraftControl {
 public:
  static constexpr int kLongestPause = 64;

  // Of the `found` drafts that there are, so many are proposed in the next step, of which
  // `sequences` sequences are part.
  int choose(const DraftCosts& costs, int sequences, int found);
  // A step had so many drafts, and the first so many of them were right.
  void note(int proposed, int accepted);

 private:
  // 0: none pays.
  static int best_number(const DraftCosts& costs, int sequences, int found, double acceptance);

  // Drafts that were compared with the token that was drawn, and those that were it: the older ones
  // count less. A sequence begins as if it had seen some.
  double compared_ = 3, right_ = 2;
  int pause_ = 1, left_ = 0;  // steps: how long the next pause is, and what is left of this one
};

}  // namespace spillway
