// SPDX-License-Identifier: Apache-2.0
#include "cpu/emulated_clock.h"

#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/fault_points.h"

namespace spillway {
namespace {

class ClockedEvent final : public DeviceEvent {
 public:
  explicit ClockedEvent(std::shared_ptr<EmulatedClock> clock) : clock_(std::move(clock)) {}
  void synchronize() override { clock_->pass_until(at_s); }
  // Its bytes have moved, and only its time is yet to come.
  bool is_reached() const override { return true; }
  double seconds_after(const DeviceEvent& earlier) const override {
    return at_s - static_cast<const ClockedEvent&>(earlier).at_s;
  }
  double at_s = 0;

 private:
  std::shared_ptr<EmulatedClock> clock_;
};

size_t move_all(std::span<const CopyPiece> pieces) {
  size_t bytes = 0;
  for (const CopyPiece& piece : pieces) {
    std::memcpy(piece.to, piece.from, piece.bytes);
    bytes += piece.bytes;
  }
  return bytes;
}

class ClockedCompute final : public DeviceStream {
 public:
  explicit ClockedCompute(std::shared_ptr<EmulatedClock> clock) : clock_(std::move(clock)) {}
  void copy_to_device(std::span<const CopyPiece> pieces) override { move_all(pieces); }
  void copy_to_host(std::span<const CopyPiece> pieces) override { move_all(pieces); }
  void run_on_host(std::function<void()> work) override { work(); }
  void store(HostSignal& signal, uint32_t value) override { signal.store(value); }
  void wait(const HostSignal& signal, uint32_t value) override { wait_for(signal, value); }
  void record(DeviceEvent& event) override {
    static_cast<ClockedEvent&>(event).at_s = clock_->now_s();
  }
  void wait(const DeviceEvent& event) override {
    clock_->pass_until(static_cast<const ClockedEvent&>(event).at_s);
  }
  void synchronize() override {}

 private:
  std::shared_ptr<EmulatedClock> clock_;
};

class ClockedStream final : public DeviceStream {
 public:
  ClockedStream(std::shared_ptr<EmulatedClock> clock, std::function<double(size_t)> copy_seconds)
      : clock_(std::move(clock)), copy_seconds_(std::move(copy_seconds)) {}
  void copy_to_device(std::span<const CopyPiece> pieces) override {
    SPW_CHECK(injected_error("copy.device") == 0, kDevice, "the emulated accelerator fails");
    reached_s_ = begun_s() + copy_seconds_(move_all(pieces));
  }
  void copy_to_host(std::span<const CopyPiece> pieces) override { copy_to_device(pieces); }
  void run_on_host(std::function<void()> work) override { work(); }
  void store(HostSignal& signal, uint32_t value) override { signal.store(value); }
  void wait(const HostSignal& signal, uint32_t value) override { wait_for(signal, value); }
  void record(DeviceEvent& event) override { static_cast<ClockedEvent&>(event).at_s = begun_s(); }
  void wait(const DeviceEvent& event) override {
    reached_s_ = std::max(reached_s_, static_cast<const ClockedEvent&>(event).at_s);
  }
  void synchronize() override { clock_->pass_until(reached_s_); }

 private:
  // Returns when an operation that is queued now begins.
  double begun_s() const { return std::max(reached_s_, clock_->now_s()); }

  std::shared_ptr<EmulatedClock> clock_;
  std::function<double(size_t)> copy_seconds_;
  double reached_s_ = 0;  // when everything queued so far is done
};

}  // namespace

std::unique_ptr<DeviceStream> make_clocked_compute(std::shared_ptr<EmulatedClock> clock) {
  return std::make_unique<ClockedCompute>(std::move(clock));
}

std::unique_ptr<DeviceStream> make_clocked_stream(
    std::shared_ptr<EmulatedClock> clock, std::function<double(size_t bytes)> copy_seconds) {
  return std::make_unique<ClockedStream>(std::move(clock), std::move(copy_seconds));
}

std::unique_ptr<DeviceEvent> make_clocked_event(std::shared_ptr<EmulatedClock> clock) {
  return std::make_unique<ClockedEvent>(std::move(clock));
}

}  // namespace spillway
