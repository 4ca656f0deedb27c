// SPDX-License-Identifier: Apache-2.0
#include "cuda/token_walk_shares.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace spillway::cuda {
namespace {

constexpr int kUpdates = 5;
// A part of what a walk suggests: what is noise goes away, and so does what a share changes itself.
constexpr double kGain = 0.6;
constexpr double kMost = 1.5;  // of an even share; and no less than even / kMost

}  // namespace

WalkShares::WalkShares(int blocks) : shares_(static_cast<size_t>(blocks), 1.0 / blocks) {
  if (blocks <= kWalkShares) updates_left_ = kUpdates;
}

void WalkShares::update(std::span<const WalkTimes> times) {
  SPW_ASSERT(times.size() == shares_.size() && updates_left_ > 0);
  // The first walk has its code to fetch, and page tables.
  if (std::exchange(first_, false)) return;
  --updates_left_;
  const auto busy = [](const WalkTimes& t) {
    return static_cast<double>(t.total) - static_cast<double>(t.waited);
  };
  double mean = 0;
  for (const WalkTimes& t : times) {
    if (t.total == 0 || t.waited >= t.total) return;  // not of a walk
    mean += busy(t) / static_cast<double>(times.size());
  }
  const double even = 1.0 / static_cast<double>(shares_.size());
  for (size_t i = 0; i < shares_.size(); ++i) {
    shares_[i] *= 1 + kGain * (mean / busy(times[i]) - 1);
    shares_[i] = std::clamp(shares_[i], even / kMost, even * kMost);
  }
  const double sum = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  for (double& share : shares_) share /= sum;
}

void WalkShares::apply(Walk& walk) const {
  walk.shared_evenly = shares_.size() > kWalkShares;
  if (walk.shared_evenly) return;
  double before = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    walk.share_begin[i] = static_cast<uint16_t>(std::min(before * 65536 + 0.5, 65535.0));
    before += shares_[i];
  }
}

}  // namespace spillway::cuda
