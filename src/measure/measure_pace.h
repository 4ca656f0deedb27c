// SPDX-License-Identifier: Apache-2.0
// How much of its time measuring a machine has used, who is told, and who may stop it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "device/device.h"

namespace spillway {

// Of one measuring, part by part. Used from one thread.
class MeasurePace {
 public:
  using Progress = std::function<void(double share, std::string_view what)>;

  MeasurePace(double seconds, const std::atomic<bool>* cancel, Progress progress);

  // The next part, `what`, may take `share` of all the time, and what those before left over.
  void begin(std::string_view what, double share);
  // Seconds of this part; below 0 where it took too long.
  double left() const;
  // Throws kCancelled where somebody wants it to stop; tells how far it is.
  void check();

 private:
  using Clock = std::chrono::steady_clock;
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  Clock::time_point start_ = Clock::now();
  double seconds_;
  double shares_ = 0;  // of the parts so far, this one included
  const std::atomic<bool>* cancel_;
  Progress progress_;
  std::string what_;
};

// Seconds of one call of `op`, which calls ops of the device: the median of a few, within about
// `at_most_s`. Where ops only queue, many are queued and waited for together.
double time_op(Device& device, MeasurePace& pace, double at_most_s,
               const std::function<void()>& op);

// Calls `op` for so long.
void repeat_for(Device& device, MeasurePace& pace, double seconds, const std::function<void()>& op);

}  // namespace spillway
