// SPDX-License-Identifier: Apache-2.0
// Measures how long the device's ops wait, and for what.
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

// Marks points in the compute queue before and after each wait; between these two marks ops had
// nothing to do. This costs two events per wait.
class StallClock {
 public:
  explicit StallClock(Device& device) : device_(device) {}

  // Calls `wait`, which makes the compute queue wait, and counts the time under `cause`.
  template <class Fn>
  void time(StallCause cause, Fn&& wait) {
    const size_t begin = mark();
    drawn(timeline_, device_.compute(), TimelineLane::kGpuWaits, stall_cause_name(cause), -1, wait);
    pending_.push_back({cause, begin, mark()});
    if (pending_.size() >= kMostPending) drain();
  }
  // Also records the waits in this timeline from now on; null stops recording.
  void record(Timeline* timeline) { timeline_ = timeline; }
  // Returns the seconds by cause since the last call; waits for the device.
  std::array<double, kStallCauseCount> take();

 private:
  struct Wait {
    StallCause cause;
    size_t begin, end;
  };
  static constexpr size_t kMostPending = 4096;
  size_t mark();
  void drain();

  Device& device_;
  Timeline* timeline_ = nullptr;
  std::vector<std::unique_ptr<DeviceEvent>> events_;
  size_t used_ = 0;
  std::vector<Wait> pending_;
  std::array<double, kStallCauseCount> seconds_ = {};
};

}  // namespace spillway
