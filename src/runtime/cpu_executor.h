// SPDX-License-Identifier: Apache-2.0
// The CPU executor: runs the CPU's part of a step beside the device, one piece of work after the
// other.
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

// A thread that owns the host's ops while a step runs. The thread and the device's compute queue
// signal their progress to each other through numbers in pinned memory. That takes a microsecond or
// two, where a host callback by the driver takes tens, and a step has hundreds of such meetings.
// Work is queued from one thread; the device must outlive it.
class CpuExecutor {
 public:
  explicit CpuExecutor(Device& device);
  ~CpuExecutor();
  CpuExecutor(const CpuExecutor&) = delete;
  CpuExecutor& operator=(const CpuExecutor&) = delete;

  // Queues `work`: it is called after the work before it, when everything that `queue` has so far
  // is done. If it throws, synchronize() rethrows that, and work after it is skipped. Returns the
  // work's number. `ready` is this queue's signal, made by the device; it must outlive the work.
  uint32_t start(DeviceStream& queue, HostSignal& ready, std::function<void()> work);
  // Makes ops queued from now on wait until the work of this number is done or skipped.
  void wait_for_work(uint32_t number);
  // Waits until all work is done; throws the first failure.
  void synchronize();
  // After a step that ended early: waits until no work is left, and ignores failures.
  void reset() noexcept;

 private:
  struct Work {
    uint32_t number;
    const HostSignal* ready;
    std::function<void()> run;
  };
  void work();

  Device& device_;
  std::unique_ptr<HostSignal> done_;  // number of the last work that is done
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
