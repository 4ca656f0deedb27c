// SPDX-License-Identifier: Apache-2.0
#include "base/core_budget.h"

#include <algorithm>
#include <cmath>

namespace spillway {
namespace {

// If workers lost less than this share of a processor, the disturbance is small, and giving up a
// worker would cost more.
constexpr double kDisturbed = 0.2;
// If idle time is known, a worker is added back only if this share of a processor was idle.
constexpr double kIdle = 0.5;
// The pauses between checks for an idle processor, which cost nothing, and between trials of one
// more worker, of which a failed one costs an interval or two.
constexpr double kFirstPause_s = 0.25, kLongestPause_s = 2;

}  // namespace

void CoreBudget::add_window(double window_s, double waited_s, std::optional<double> idle_s) {
  const double lost = waited_s / window_s;  // in processors
  const bool disturbed = lost > kDisturbed;
  const auto pause = [&](double seconds) {
    pause_s_ = seconds;
    passed_s_ = idle_s_ = 0;
    idle_known_ = true;
  };
  if (disturbed && active_ > 1 && (disturbed_ || trying_)) {
    pause(trying_ ? std::min(2 * pause_s_, kLongestPause_s) : kFirstPause_s);
    const int less = trying_ ? 1 : std::max(1, static_cast<int>(std::lround(lost)));
    active_ = std::max(1, active_ - less);
    trying_ = false;
    disturbed_ = false;
    return;
  }
  if (trying_) {  // the trial worked, so the next one may come soon
    trying_ = false;
    pause(0);
  }
  disturbed_ = disturbed;
  if (active_ == workers_) return;
  passed_s_ += window_s;
  idle_s_ += idle_s.value_or(0);
  idle_known_ = idle_known_ && idle_s;
  if (passed_s_ < pause_s_) return;
  if (idle_known_ && idle_s_ < kIdle * passed_s_) {
    pause(kFirstPause_s);
    return;
  }
  ++active_;
  trying_ = true;
}

}  // namespace spillway
