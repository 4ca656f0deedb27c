// SPDX-License-Identifier: Apache-2.0
// The clock that an engine measures its steps with.
#pragma once

#include <functional>
#include <utility>

#include "base/stopwatch.h"

namespace spillway {

class StepClock {
 public:
  // `clock` is EngineOptions::clock; null: the machine's.
  explicit StepClock(std::function<double()> clock) : clock_(std::move(clock)) {}
  double now_s() const { return clock_ ? clock_() : since_.seconds(); }

 private:
  std::function<double()> clock_;
  Stopwatch since_;
};

}  // namespace spillway
