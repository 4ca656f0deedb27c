// SPDX-License-Identifier: Apache-2.0
// Work beside the ops: queues of copies between host and device, ordered by events.
//
// Each queue does its work in the order it was given; between queues, only events order. The
// thread that fills them does not wait, so that every link and processor has its next piece of work
// when it ends the last one.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>

namespace spillway {

// A point in a queue's work. Made by Device::make_event(); one that was never recorded counts as
// reached.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // The calling thread waits until it is reached.
  virtual void synchronize() = 0;
  // Between two points that are reached, both made with timing.
  virtual double seconds_after(const DeviceEvent& earlier) const = 0;
};

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

// A queue. Made by Device::make_stream(), and the one in which ops run: Device::compute(). Filled
// from one thread at a time; the device must outlive it.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // Host memory that is not pinned (Device::try_pin) makes a copy slow, and the caller may wait.
  // Many small pieces go together: one call for all of them, not one for each.
  virtual void copy_to_device(std::span<const CopyPiece> pieces) = 0;
  virtual void copy_to_host(std::span<const CopyPiece> pieces) = 0;
  // Calls `work` on a thread of the host when its turn comes; what is queued behind waits for it.
  // It must not call the device. What it throws is thrown by synchronize().
  virtual void run_on_host(std::function<void()> work) = 0;

  virtual void record(DeviceEvent& event) = 0;
  // Work queued from now on starts when `event`, as recorded last, is reached.
  virtual void wait(const DeviceEvent& event) = 0;
  virtual void synchronize() = 0;
};

// Where ops and copies are done when they return: nothing is ever pending.
class HostEvent final : public DeviceEvent {
 public:
  void synchronize() override {}
  double seconds_after(const DeviceEvent& earlier) const override;
  void stamp() { at_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point at_ = {};
};

class HostStream final : public DeviceStream {
 public:
  void copy_to_device(std::span<const CopyPiece> pieces) override;
  void copy_to_host(std::span<const CopyPiece> pieces) override { copy_to_device(pieces); }
  void run_on_host(std::function<void()> work) override { work(); }
  void record(DeviceEvent& event) override { static_cast<HostEvent&>(event).stamp(); }
  void wait(const DeviceEvent& /*event*/) override {}
  void synchronize() override {}
};

}  // namespace spillway
