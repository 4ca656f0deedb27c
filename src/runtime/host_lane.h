// SPDX-License-Identifier: Apache-2.0
// The CPU's part of a step: what it computes beside the device, one thing after the other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "device/device.h"

namespace spillway {

// A thread that owns the host's ops while a step runs. It and the device's compute queue tell each
// other by numbers in pinned memory how far they are: that takes a microsecond or two, and a step
// has hundreds of such meetings (a call of the host by the driver takes tens). Filled from one
// thread; the device must outlive it.
class HostLane {
 public:
  explicit HostLane(Device& device);
  ~HostLane();
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  // Calls `work` when all that `queue` has so far is done, after the work before it. What it
  // throws, synchronize() throws; work behind it is left out then. Returns its number. `ready` is
  // this queue's, made by the device; it must outlive the work.
  uint32_t start(DeviceStream& queue, HostSignal& ready, std::function<void()> work);
  // Ops called from now on begin when the work of this number is done, or left out.
  void wait_for_work(uint32_t number);
  // All of it is done; throws what went wrong first.
  void synchronize();
  // After a step that ended early: nothing is left to do, whatever went wrong.
  void reset() noexcept;

 private:
  struct Work {
    uint32_t number;
    const HostSignal* ready;
    std::function<void()> run;
  };
  void work();

  Device& device_;
  std::unique_ptr<HostSignal> done_;  // the last that is
  uint32_t last_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool busy_ = false, closing_ = false;
  std::atomic<bool> given_up_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace spillway
