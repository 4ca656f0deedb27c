// SPDX-License-Identifier: Apache-2.0
// Work beside the ops: queues of copies between host and device, ordered by events.
//
// Each queue does its work in the order it was given; between queues, only events give an order.
// The thread that fills them does not wait, so that every link and processor has its next work
// queued when it ends the last.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace spillway {

// A point in a queue's work, made by Device::make_event(). An event that was never recorded counts
// as reached.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Makes the calling thread wait until the event is reached.
  virtual void synchronize() = 0;
  // Returns whether it is reached, without waiting; also true if the device has failed.
  virtual bool is_reached() const = 0;
  // Returns the time between two reached events, both made with timing.
  virtual double seconds_after(const DeviceEvent& earlier) const = 0;
};

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

// A number in host memory by which a queue and a host thread tell each other how far they are: one
// of them stores it, the other waits for it. Made by Device::make_signal(); it begins at 0 and only
// grows (modulo 2^32).
class HostSignal {
 public:
  virtual ~HostSignal() = default;
  virtual uint32_t load() const { return value_.load(std::memory_order_acquire); }
  virtual void store(uint32_t value) { value_.store(value, std::memory_order_release); }
  bool has_reached(uint32_t value) const { return static_cast<int32_t>(load() - value) >= 0; }

 private:
  std::atomic<uint32_t> value_ = 0;
};

// A queue of work, made by Device::make_stream(); Device::compute() is the one in which ops run.
// Filled from one thread at a time; the device must outlive it.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // Copies all pieces in one call, which is much cheaper than one call for each. If host memory is
  // not pinned (Device::try_pin), the copy is slow and the caller may wait.
  virtual void copy_to_device(std::span<const CopyPiece> pieces) = 0;
  virtual void copy_to_host(std::span<const CopyPiece> pieces) = 0;
  // Calls `work` on a host thread when its turn comes; work queued after it waits for it. It must
  // not call the device. What it throws is thrown by synchronize().
  virtual void run_on_host(std::function<void()> work) = 0;

  // Stores `value` when its turn comes: a thread that sees the value also sees the effects of
  // earlier work. It takes a microsecond, while run_on_host() takes tens.
  virtual void store(HostSignal& signal, uint32_t value) = 0;
  // Makes work queued from now on start only after a host thread has stored `value` or more.
  virtual void wait(const HostSignal& signal, uint32_t value) = 0;

  virtual void record(DeviceEvent& event) = 0;
  // Makes work queued from now on start only after `event`, as recorded last, is reached.
  virtual void wait(const DeviceEvent& event) = 0;
  virtual void synchronize() = 0;
};

// Makes the calling thread wait until `signal` reaches `value`, spinning at first, since that
// mostly takes microseconds. Returns false if `given_up` was set meanwhile.
bool wait_for(const HostSignal& signal, uint32_t value,
              const std::atomic<bool>* given_up = nullptr);

// An event for devices whose ops and copies are done when they return: nothing is ever pending.
class HostEvent final : public DeviceEvent {
 public:
  void synchronize() override {}
  bool is_reached() const override { return true; }
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
  void store(HostSignal& signal, uint32_t value) override { signal.store(value); }
  void wait(const HostSignal& signal, uint32_t value) override { wait_for(signal, value); }
  void record(DeviceEvent& event) override { static_cast<HostEvent&>(event).stamp(); }
  void wait(const DeviceEvent& /*event*/) override {}
  void synchronize() override {}
};

}  // namespace spillway
