// SPDX-License-Identifier: Apache-2.0
#include "predict/shift_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace spillway {
namespace {

// The first three are in nats. Chosen on shifts between two sets of Alpaca's answers
// (docs/notes/scheduling.md): of the settings that notice each one of 240 shifts, these raise the
// fewest false alarms.
constexpr double kEnough = 8;     // a lead that counts as a shift
constexpr double kMargin = 0.35;  // taken off per answer: predictors are surer than right
constexpr double kMost = 3;       // limit of the lead per answer, since no single one says much
constexpr double kLeastShare = 1e-9;
// Answers from one shift to the next, so that a few odd answers cannot make it forget again and
// again.
constexpr size_t kLeastApart = 16;

}  // namespace

size_t ShiftWatch::begin_again() {
  lead_ = 0;
  in_bucket_ = {};
  return std::exchange(answers_, 0);
}

std::optional<size_t> ShiftWatch::try_notice(double share, size_t bucket) {
  // The rival's estimate counts one more answer, which is spread over all buckets.
  const double rival = (static_cast<double>(in_bucket_[bucket]) + 1.0 / kLengthBuckets) /
                       (static_cast<double>(answers_) + 1);
  const double better = std::log(rival / (share > kLeastShare ? share : kLeastShare));
  lead_ += std::clamp(better, -kMost, kMost) - kMargin;
  if (lead_ <= 0) begin_again();
  ++answers_;
  ++in_bucket_[bucket];
  if (not_before_ > 0) --not_before_;
  if (lead_ <= kEnough || not_before_ > 0) return std::nullopt;
  not_before_ = kLeastApart;
  return begin_again();
}

}  // namespace spillway
