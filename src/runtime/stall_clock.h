// SPDX-License-Identifier: Apache-2.0
// How long the device's ops wait, and for what.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"
#include "runtime/timeline.h"

namespace spillway {

enum class StallCause : uint8_t {
  kWeights,
  kKvLoad,
  kKvStore,
  kHostAttention,
  kActivations,
  kHostLinear,
};
inline constexpr int kStallCauseCount = 6;
const char* stall_cause_name(StallCause cause);

// Marks points in the compute queue before and after each wait; what lies between two marks is time
// in which ops had nothing to do. Costs two events a wait.
class StallClock {
 public:
  explicit StallClock(Device& device) : device_(device) {}

  // Around what makes the compute queue wait.
  template <class Fn>
  void time(StallCause cause, Fn&& wait) {
    const size_t begin = mark();
    drawn(timeline_, device_.compute(), TimelineLane::kGpuWaits, stall_cause_name(cause), -1, wait);
    pending_.push_back({cause, begin, mark()});
    if (pending_.size() >= kMostPending) settle();
  }
  // Waits are drawn there, too; null: not any more.
  void record(Timeline* timeline) { timeline_ = timeline; }
  // Seconds by cause since the last call; waits for the device.
  std::array<double, kStallCauseCount> take();

 private:
  struct Wait {
    StallCause cause;
    size_t begin, end;
  };
  static constexpr size_t kMostPending = 4096;
  size_t mark();
  void settle();

  Device& device_;
  Timeline* timeline_ = nullptr;
  std::vector<std::unique_ptr<DeviceEvent>> events_;
  size_t used_ = 0;
  std::vector<Wait> pending_;
  std::array<double, kStallCauseCount> seconds_ = {};
};

}  // namespace spillway
