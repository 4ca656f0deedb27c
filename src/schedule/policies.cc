// SPDX-License-Identifier: Apache-2.0
#include "schedule/policies.h"

#include <algorithm>
#include <cmath>

namespace spillway {

QueueOrder::Rank FairOrder::rank(const SequenceView& arriving) {
  constexpr int kMostDoublings = 16;
  const int64_t end = arriving.reserved > 0 ? arriving.reserved : arriving.expected;
  const double answer = static_cast<double>(std::max<int64_t>(0, end - arriving.known));
  // Most requests ask for longer answers than they get.
  const double likely = arriving.mean_answer > 0 ? std::min(answer, arriving.mean_answer) : answer;
  const double cost = static_cast<double>(arriving.known) + likely;
  const int doublings = -std::clamp(arriving.priority, -kMostDoublings, kMostDoublings);
  const std::pair flow(arriving.client, arriving.priority);
  const auto found = last_.find(flow);
  const double before = found == last_.end() ? clock_ : std::max(clock_, found->second);
  const double weighted = std::ldexp(cost, -doublings);
  const double rank = last_[flow] = before + weighted;
  if (last_.size() > clean_at_) {
    std::erase_if(last_, [&](const auto& client) { return client.second <= clock_; });
    clean_at_ = std::max<size_t>(64, 2 * last_.size());
  }
  return {.value = rank, .cost = weighted};
}

void FairOrder::began(double rank) { clock_ = std::max(clock_, rank); }

void FairOrder::left(const SequenceView& leaving, double cost) {
  const auto found = last_.find({leaving.client, leaving.priority});
  if (found != last_.end()) found->second -= cost;
}

int PlannedAdmission::max_admissions(const AdmissionState& state) const {
  int most = policy_.max_sequences;
  if (policy_.max_admissions > 0) most = std::min(most, policy_.max_admissions);
  if (policy_.stagger && state.mean_answer > 0)
    most = std::min(most, staggered_admissions(policy_.max_sequences, state.mean_answer));
  if (policy_.admit_in_blocks) most = std::min(most, block_room(state.running));
  return most;
}

void PlannedAdmission::began(int admissions, bool full, int running_before) {
  block_room_ = full ? 0 : block_room(running_before) - admissions;
}

}  // namespace spillway
