// SPDX-License-Identifier: Apache-2.0
#include "measure/link_rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <vector>

#include "device/expected_ops.h"
#include "measure/processor_rates.h"
#include "measure/seconds_since.h"
#include "memory/pinned_buffer.h"
#include "runtime/cpu_executor.h"

namespace spillway {
namespace {

constexpr size_t kTinyTransfer = 4096;
constexpr double kPointSeconds = 0.15;  // for one size in one direction
constexpr double kBesideSeconds = 0.5;
constexpr int kQueued = 4;  // transfers are waited for together, so that the link never idles
// More are queued while all of the CPU's processors compute, since the thread that waits for the
// transfers is not woken immediately then.
constexpr int kQueuedBeside = 64;

// A load of transfers over the link. It has two places on each side, so that no transfer waits for
// the memory of the one before.
class LinkLoad {
 public:
  LinkLoad(Device& host, Device& device, size_t largest) : device_(device), largest_(largest) {
    const auto start = Clock::now();
    on_host_ = PinnedBuffer(host, device, 2 * largest, MemoryTag::kStaging);
    pin_seconds_ = seconds_since(start);
    on_device_ = device.allocate(2 * largest, MemoryTag::kStaging);
    stream_ = device.make_stream();
    move(false, 2 * largest, 1);  // writes all device memory before it is read
  }

  // Returns the seconds that each of `count` transfers takes.
  double move(bool to_host, size_t bytes, int count) {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) {
      const size_t at = bytes <= largest_ ? static_cast<size_t>(i % 2) * largest_ : 0;
      CopyPiece piece{on_device_.data() + at, on_host_.data() + at, bytes};
      if (to_host) {
        piece = {on_host_.data() + at, on_device_.data() + at, bytes};
        stream_->copy_to_host({&piece, 1});
      } else {
        stream_->copy_to_device({&piece, 1});
      }
    }
    stream_->synchronize();
    return seconds_since(start) / count;
  }
  // Returns the median of a few measurements within about `at_most_s`.
  double time(bool to_host, size_t bytes, double at_most_s, MeasurePace& pace) {
    const auto start = Clock::now();
    const int count = bytes >= largest_
                          ? kQueued
                          : static_cast<int>(std::clamp<size_t>(largest_ / bytes, kQueued, 64));
    move(to_host, bytes, 1);
    std::vector<double> times;
    while (times.empty() || (times.size() < 9 && seconds_since(start) < at_most_s)) {
      pace.check();
      times.push_back(move(to_host, bytes, count));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void enter_thread() { device_.enter_thread(); }
  double pin_bytes_per_s() const {
    return on_host_.is_pinned() ? static_cast<double>(on_host_.bytes()) / pin_seconds_ : 0;
  }
  size_t largest() const { return largest_; }

 private:
  Device& device_;
  const size_t largest_;
  double pin_seconds_ = 0;
  PinnedBuffer on_host_;
  Buffer on_device_;
  std::unique_ptr<DeviceStream> stream_;
};

RateCurve curve_of(LinkLoad& link, bool to_host, double transfer_s, MeasurePace& pace) {
  std::vector<std::pair<double, double>> points;
  for (size_t bytes = kSmallestTransfer; bytes <= link.largest(); bytes *= 4) {
    const double seconds =
        link.time(to_host, bytes, std::min(kPointSeconds, pace.left() / 8), pace);
    // The fixed time of every transfer is priced separately.
    const double moving = std::max(seconds - transfer_s, seconds / 2);
    points.emplace_back(static_cast<double>(bytes), static_cast<double>(bytes) / moving);
  }
  return RateCurve(std::move(points));
}

// Loads both sides as decoding with the CPU's help does: weights go to the device while the CPU
// computes attention.
void measure_beside(LinkLoad& link, Device& host, uint64_t kv_bytes, MeasurePace& pace,
                    Hardware& hardware) {
  AttentionLoad load(host, KvType::kF16, kv_bytes);
  const size_t bytes = std::min(link.largest(), size_t{16} << 20);
  const double at_most = std::clamp(pace.left() / 4, 0.0, kBesideSeconds);
  const double cpu_alone = time_op(host, pace, at_most, [&] { load.run(); });
  const double link_alone = link.time(false, bytes, at_most, pace);

  std::atomic<bool> enough = false;
  auto moved = std::async(std::launch::async, [&] {
    link.enter_thread();
    const auto start = Clock::now();
    int count = 0;
    for (; count == 0 || !enough.load(); count += kQueuedBeside)
      link.move(false, bytes, kQueuedBeside);
    return seconds_since(start) / count;
  });
  double cpu_beside = cpu_alone;
  try {
    cpu_beside = time_op(host, pace, at_most, [&] { load.run(); });
  } catch (...) {
    enough = true;
    moved.wait();
    throw;
  }
  enough = true;
  hardware.link_beside_cpu = std::min(1.0, link_alone / moved.get());
  hardware.cpu_beside_link = std::min(1.0, cpu_alone / cpu_beside);
}

// Measures a linear op that the CPU has a part of, without the work itself: its input is copied to
// the host, all of the host's threads have something to do, and the result is copied back.
double measure_meeting(Device& host, Device& device, MeasurePace& pace) {
  constexpr int64_t kColumns = 4096, kRows = 2048, kDepth = 64;
  constexpr int kMeetings = 64, kRounds = 5;
  const DType inner = device.activation_type(DType::kF16);
  const auto bytes = [](DType type, int64_t count) {
    return static_cast<size_t>(row_bytes(type, count));
  };
  PinnedBuffer in(host, device, bytes(DType::kF32, kColumns), MemoryTag::kStaging),
      out(host, device, bytes(DType::kF32, kRows), MemoryTag::kStaging);
  if (!in.is_pinned() || !out.is_pinned() || !device.reads_pinned_memory()) return 0;
  const Buffer x = device.allocate(bytes(inner, kColumns), MemoryTag::kActivations),
               result = device.allocate(bytes(inner, kRows), MemoryTag::kActivations),
               matrix = host.allocate(bytes(DType::kF16, kRows * kDepth), MemoryTag::kWeights);
  std::memset(matrix.data(), 0, matrix.bytes());
  std::memset(in.data(), 0, in.bytes());
  std::memset(out.data(), 0, out.bytes());
  const WeightView w{DType::kF16, kRows, kDepth, matrix.data()};
  const Activations below{DType::kF32, 1, kRows, kRows, out.data()};
  const auto ready = device.make_signal();
  CpuExecutor lane(device);
  const ExpectedOps awake(&host);
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    pace.check();
    device.synchronize();
    const auto start = Clock::now();
    for (int i = 0; i < kMeetings; ++i) {
      device.ops().copy({inner, 1, kColumns, kColumns, x.data()},
                        {DType::kF32, 1, kColumns, kColumns, in.data()});
      const uint32_t number = lane.start(device.compute(), *ready, [&] {
        host.ops().linear(w, {}, {DType::kF32, 1, kDepth, kDepth, in.data()}, below,
                          LinearMode::kStore);
      });
      lane.wait_for_work(number);
      device.ops().copy(below, {inner, 1, kRows, kRows, result.data()});
    }
    device.synchronize();
    lane.synchronize();
    const double seconds = seconds_since(start) / kMeetings;
    if (round == 0 || seconds < best) best = seconds;
  }
  return best;
}

}  // namespace

void measure_links(Device& host, Device& device, const LinkSizes& sizes, MeasurePace& pace,
                   double share, Hardware& hardware) {
  pace.begin("links: pinning", 0.1 * share);
  LinkLoad link(host, device, std::max(sizes.largest, kSmallestTransfer));
  hardware.pin_bytes_per_s = link.pin_bytes_per_s();
  pace.begin("links: to the device", 0.3 * share);
  hardware.transfer_s = link.time(false, kTinyTransfer, kPointSeconds, pace);
  hardware.to_device = curve_of(link, false, hardware.transfer_s, pace);
  pace.begin("links: to the host", 0.3 * share);
  hardware.to_host = curve_of(link, true, hardware.transfer_s, pace);
  pace.begin("links: beside the CPU", 0.3 * share);
  measure_beside(link, host, sizes.kv_bytes, pace, hardware);
  hardware.meeting_s = measure_meeting(host, device, pace);
}

}  // namespace spillway
