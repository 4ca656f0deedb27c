// SPDX-License-Identifier: Apache-2.0
// An accelerator emulated by the host: it has memory of its own under a budget, and copies take
// time.
//
// It is for tests of everything that moves bytes between tiers, on machines without a GPU. Its
// memory starts poisoned (every float is NaN), so that missing copies show up in the results;
// copies run on threads of their own, late by a random delay, so that missing waits show up too.
// Ops compute as the CPU's do and are done on return; steps with one row per sequence are recorded
// and replayed (replaying_ops.h). Fault points: alloc.device, alloc.pin, copy.device, step.device,
// draw.device, thread.device.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/thread_pool.h"
#include "cpu/emulated_clock.h"
#include "cpu/replaying_ops.h"
#include "device/device.h"

namespace spillway {

struct EmulatedAcceleratorOptions {
  int threads = 1;
  uint64_t memory_bytes = uint64_t{1} << 30;
  uint64_t seed = 1;         // seeds the delays
  int max_delay_us = 200;    // delay of a copy, at most
  uint64_t bytes_per_s = 0;  // of each stream; 0 = as fast as possible
  // Whether the streams share that rate: the copies of one direction are made one after the other,
  // in the order in which they could begin. Only in real time.
  bool shares_link = false;
  // The least time of each attention, as if the layer around it took that long: `layer_us`, and the
  // time for reading its KV at this rate. 0 = as fast as possible.
  int layer_us = 0;
  uint64_t kv_bytes_per_s = 0;
  uint64_t pinnable_bytes = ~uint64_t{0};  // try_pin() refuses more than this
  bool draws = false;                      // whether it samples tokens, by temperature alone
  // If set, all of these times pass on this clock, without waiting; null means real time. Copies
  // are then never late at random.
  std::shared_ptr<EmulatedClock> clock = nullptr;
};

// When the link of each direction is free again, for streams that share it.
struct EmulatedLinks {
  std::mutex mutex;
  std::chrono::steady_clock::time_point to_device_free, to_host_free;
};

// The CPU's ops with what an accelerator adds: it replays steps and samples tokens.
class EmulatedOps final : public ReplayingOps {
 public:
  EmulatedOps(Device& device, ThreadPool& pool, const EmulatedAcceleratorOptions& options)
      : ReplayingOps(device, pool), options_(options) {}

  void attention(const Activations& q, const KvLayerView& kv, std::span<const SequenceSpan> spans,
                 const AttentionParams& params, const Activations& out) override;
  void embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
             LinearMode mode) override;
  void copy(const Activations& from, const Activations& to) override;
  bool can_sample() const override { return options_.draws; }
  void sample(const Activations& logits, std::span<const SampleRow> rows,
              std::span<SampledToken> tokens) override;

 private:
  EmulatedAcceleratorOptions options_;
};

class EmulatedAccelerator final : public Device {
 public:
  explicit EmulatedAccelerator(const EmulatedAcceleratorOptions& options = {});

  const DeviceInfo& info() const override { return info_; }
  Buffer allocate(size_t bytes, MemoryTag tag) override;
  Usage usage() const override { return usage_; }
  void reset_peaks() override { usage_.reset_peaks(); }
  WeightLayout preferred_layout(DType type, int64_t rows, int64_t cols) const override;
  bool host_visible() const override { return false; }
  void copy_to_device(std::byte* to, const std::byte* host, size_t bytes) override;
  void copy_to_host(std::byte* host, const std::byte* from, size_t bytes) override;
  EmulatedOps& ops() override { return ops_; }
  PartitionedAttention& partitioned_attention() override { return ops_; }
  void synchronize() override {}
  void enter_thread() override;
  DeviceStream& compute() override { return *compute_; }
  std::unique_ptr<DeviceStream> make_stream() override;
  std::unique_ptr<DeviceEvent> make_event(bool timed = false) override;
  bool try_pin(std::byte* host, size_t bytes) override;
  void unpin(std::byte* host) noexcept override;
  // Sets which share of the streams' rate is left, as if other programs copied too.
  void set_link_share(double share) { *link_share_ = share; }
  // Returns the bytes that are pinned now.
  uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  void release(std::byte* data, size_t bytes, MemoryTag tag) noexcept override;

  EmulatedAcceleratorOptions options_;
  ThreadPool pool_;
  DeviceInfo info_;
  Usage usage_;
  uint64_t pinned_bytes_ = 0;
  std::map<const std::byte*, size_t> pinned_;
  uint64_t streams_ = 0;
  std::shared_ptr<EmulatedLinks> links_ = std::make_shared<EmulatedLinks>();
  std::shared_ptr<std::atomic<double>> link_share_ = std::make_shared<std::atomic<double>>(1.0);
  std::unique_ptr<DeviceStream> compute_;
  EmulatedOps ops_;  // last member: its workspace is given back through release()
};

}  // namespace spillway
