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
  static constexpr int kShortestPause = 4, kLongestPause = 64;

  // Of the `found` drafts that there are, so many are proposed in the next step, of which
  // `sequences` sequences are part.
  int choose(const DraftCosts& costs, int sequences, int found);
  // A step had so many drafts, and the first so many of them were right.
  void note(int proposed, int accepted);

 private:
  // 0: none pays.
  static int best_number(const DraftCosts& costs, int sequences, int found, double acceptance);

  // How many drafts were compared with the sampled token, and how many of them were that token. The
  // older ones count less. A sequence begins with a little trust, which a few wrong drafts use up.
  double compared_ = 1.5, right_ = 1;
  int pause_ = kShortestPause;  // steps of the next pause
  int left_ = 0;                // steps that are left of this one
};

}  // namespace spillway
