// SPDX-License-Identifier: Apache-2.0
// Translates a plan's schedule into an admission policy: which sequences begin when.
#pragma once

#include <optional>

#include "plan/plan.h"

namespace spillway {

struct AdmissionPolicy {
  int max_sequences = 256;  // the most that run concurrently
  // The most admissions in a step; 0: all that there is room for. The diagonal schedule staggers
  // them, so that sequences are at different tokens and their KV does not peak together.
  int max_admissions = 0;
  // Like max_admissions, but the limit is staggered_admissions() of the mean answer length,
  // expected or of ended sequences.
  bool stagger = false;
  // Sequences are admitted together, `max_sequences` or as many as there is room for, and the next
  // ones when all of these have ended: a batch block of FlexGen's zig-zag schedule.
  bool admit_in_blocks = false;
  // A step has either prompts or new tokens, never both: a sequence with a first token waits for
  // those that begin with it. Prefill and decode are then separate, as in FlexGen's batch blocks,
  // and decode steps have all sequences of the block.
  bool prompts_first = false;
};

// The admissions per step that keep `sequences` sequences running, each at another token: as many
// as end in a step if answers have `mean_answer` tokens (FlexGen, appendix A.2).
int staggered_admissions(int sequences, double mean_answer);

// Makes the policy for at most `sequences` concurrent sequences. `mean_answer`: the mean tokens of
// an answer, if known beforehand. The schedules mean:
//   continuous  a request that ends is replaced in the next step
//   zigzag      batch blocks: prompts, then all their tokens, then the next batch block
//   diagonal    like continuous, but a few are admitted at a time
//   row         like zigzag, with one micro-batch as a batch block
AdmissionPolicy admission_policy(const Plan& plan, int sequences,
                                 std::optional<double> mean_answer = std::nullopt);

}  // namespace spillway
