// SPDX-License-Identifier: Apache-2.0
// Divides the time for measuring a machine, reports progress and allows cancelling.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "device/device.h"

namespace spillway {

// The pace of one measuring, part by part. Used from one thread.
class MeasurePace {
 public:
  using Progress = std::function<void(double share, std::string_view what)>;

  MeasurePace(double seconds, const std::atomic<bool>* cancel, Progress progress);

  // Begins the next part, `what`, which may take `share` of all the time and whatever the parts
  // before left over.
  void begin(std::string_view what, double share);
  // Returns the seconds left for this part; below 0 if it took too long.
  double left() const;
  // Throws kCancelled if measuring was cancelled; reports the progress.
  void check();

 private:
  using Clock = std::chrono::steady_clock;
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  Clock::time_point start_ = Clock::now();
  double seconds_;
  double shares_ = 0;  // sum of the parts so far, including this one
  const std::atomic<bool>* cancel_;
  Progress progress_;
  std::string what_;
};

// Returns the seconds of one call of `op`, which calls ops of the device: the median of a few,
// within about `at_most_s`. Where ops are only queued, many are queued and waited for together.
double time_op(Device& device, MeasurePace& pace, double at_most_s,
               const std::function<void()>& op);

// Calls `op` repeatedly for `seconds`.
void repeat_for(Device& device, MeasurePace& pace, double seconds, const std::function<void()>& op);

}  // namespace spillway
