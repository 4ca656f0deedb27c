// SPDX-License-Identifier: Apache-2.0
// How much of the walk's work each multiprocessor gets (token_walk.h). They do not read memory
// equally fast: those of small clusters on the chip share less (H200: 12 of 132 would be done 15%
// sooner), and all wait for the last one. Which ones differs from chip to chip, so the first walks
// are timed. What is computed does not depend on who computes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/token_walk_args.h"

namespace spillway::cuda {

class WalkShares {
 public:
  // The same for all; of more blocks than kWalkShares always.
  explicit WalkShares(int blocks);

  // Whether further walks need not be timed.
  bool settled() const { return updates_left_ == 0; }
  // After a walk of many phases: blocks that waited for others get more.
  void update(std::span<const WalkTimes> times);

  void apply(Walk& walk) const;
  std::span<const double> shares() const { return shares_; }  // their sum is 1

 private:
  std::vector<double> shares_;
  int updates_left_ = 0;
  bool first_ = true;
};

}  // namespace spillway::cuda
