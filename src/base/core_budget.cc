// SPDX-License-Identifier: Apache-2.0
#include "base/core_budget.h"

#include <algorithm>
#include <cmath>

namespace spillway {
namespace {

// Below this share of a processor the disturbance is something small, and a worker less would cost
// more.
constexpr double kDisturbed = 0.2;
// Between tries. A failed one costs about a window.
constexpr double kFirstPause_s = 0.1, kLongestPause_s = 2;

}  // namespace

void CoreBudget::add_window(double window_s, double waited_s) {
  const double lost = waited_s / window_s;  // in processors
  const bool disturbed = lost > kDisturbed;
  if (disturbed && active_ > 1 && (disturbed_ || trying_)) {
    pause_s_ = trying_ ? std::min(2 * pause_s_, kLongestPause_s) : kFirstPause_s;
    left_s_ = pause_s_;
    const int less = trying_ ? 1 : std::max(1, static_cast<int>(std::lround(lost)));
    active_ = std::max(1, active_ - less);
    trying_ = false;
    disturbed_ = false;
    return;
  }
  if (trying_) {  // it worked: the next one soon
    trying_ = false;
    left_s_ = 0;
  }
  disturbed_ = disturbed;
  if (active_ == workers_) return;
  left_s_ -= window_s;
  if (left_s_ <= 0) {
    ++active_;
    trying_ = true;
  }
}

}  // namespace spillway
