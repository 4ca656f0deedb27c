// SPDX-License-Identifier: Apache-2.0
#include "bench/s3_policies.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "schedule/predicted_policies.h"

namespace spillway {

QueueOrder::Rank LongestPredictedFirst::rank(const SequenceView& arriving) {
  constexpr double kMoreThanAnyAnswer = 1e12;
  const auto batch = static_cast<double>(arrivals_++ / window_);
  return {.value = batch * kMoreThanAnyAnswer - static_cast<double>(predicted_end(arriving))};
}

PacedAdmission::PacedAdmission(std::unique_ptr<Admission> inner, double token_s)
    : inner_(std::move(inner)),
      token_s_(token_s),
      limit_(std::min(kFirstSequences, inner_->max_sequences())) {
  SPW_CHECK(token_s > 0, kInvalidArgument, "a token in {} s cannot be generated", token_s);
}

int PacedAdmission::max_sequences() const {
  return std::clamp(static_cast<int>(limit_), 1, inner_->max_sequences());
}

// Lowers the limit immediately, in proportion, after a step that was too slow. Raises it in large
// steps while there is time to spare, then in small ones, and only if it limits the batch. Running
// sequences stay and their KV grows, so the limit keeps some distance from the allowed time.
void PacedAdmission::stepped(int sequences, double seconds) {
  constexpr double kNearly = 0.9, kStepUp = 1.0 / 64;
  constexpr double kFast = 0.6, kLargeStepUp = 0.25;
  if (sequences <= 0 || seconds <= 0) return;
  if (seconds > token_s_) {
    const double share = std::max(0.5, kNearly * token_s_ / seconds);
    limit_ = std::max(1.0, std::min(limit_, sequences * share));
  } else if (seconds < kNearly * token_s_ && sequences >= max_sequences()) {
    const double share = seconds < kFast * token_s_ ? kLargeStepUp : kStepUp;
    limit_ = std::min<double>(inner_->max_sequences(), limit_ + std::max(1.0, limit_ * share));
  }
}

}  // namespace spillway
