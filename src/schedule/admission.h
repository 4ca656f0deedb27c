// SPDX-License-Identifier: Apache-2.0
// Which sequences begin when: what a plan's schedule means, for everybody who runs one.
#pragma once

#include <optional>

#include "plan/plan.h"

namespace spillway {

struct AdmissionPolicy {
  int max_sequences = 256;  // running at once
  // Newcomers of a step; 0: all there is room for. The diagonal schedule staggers them, so that
  // sequences sit at different tokens and their KV does not peak together.
  int max_admissions = 0;
  // As max_admissions, with staggered_admissions() of the answers that sequences are expected to
  // have, or had.
  bool stagger = false;
  // Sequences begin together, `max_sequences` or as many as there is room for, and the next ones
  // when all of these have ended: a block of FlexGen's zig-zag schedule.
  bool admit_in_blocks = false;
  // A step has prompts or new tokens, never both: who has a first token waits for those that begin
  // with it. Prefill and decode are then apart, as in FlexGen's blocks, and decode has all of them.
  bool prompts_first = false;
};

// Newcomers a step that keep `sequences` sequences at work, each at another token: as many as end
// in a step, where answers have `mean_answer` tokens (FlexGen, appendix A.2).
int staggered_admissions(int sequences, double mean_answer);

// For at most `sequences` at once. `mean_answer`: where it is known beforehand, tokens of an
// answer.
//   continuous  a request that ends is replaced in the next step
//   zigzag      blocks: prompts, then all their tokens, then the next block
//   diagonal    as continuous, beginning a few at a time
//   row         as zigzag, with one micro-batch as a block
AdmissionPolicy admission_policy(const Plan& plan, int sequences,
                                 std::optional<double> mean_answer = std::nullopt);

}  // namespace spillway
