// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU, next to KV in host memory: q, k and v of a layer are copied down, the
// result is copied up, and the pages never move (FlexGen's delegation). If a sequence's KV is in
// several memories, the CPU's partition goes up as softmax state (device/partitioned_attention.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "kv/kv_cache.h"
#include "memory/pinned_buffer.h"
#include "memory/transfer_scheduler.h"
#include "runtime/cpu_executor.h"
#include "runtime/micro_batch.h"
#include "runtime/stall_clock.h"
#include "runtime/timeline.h"

namespace spillway {

// Computes attention beside the device's ops, on the CPU executor, for one layer of one micro-batch
// at a time. Called from one thread; the devices must outlive it.
class HostAttention {
 public:
  // For at most `rows` rows of at most q_dim + 2 * kv_dim elements of `type`: a layer may have
  // fewer KV heads.
  HostAttention(TransferScheduler& transfers, Device& host, CpuExecutor& executor, DType type,
                int64_t rows, int64_t q_dim, int64_t kv_dim, bool overlap);
  // Allocates now what rows with partitioned KV need in addition, not when the first of these rows
  // come. Throws kOutOfMemory.
  void prepare_partitions(int heads);
  ~HostAttention();

  // Queues the attention of rows `qkv` [rows, q_dim + 2 * the layer's kv_dim], contiguous, on the
  // device, which the ops queued so far compute. For a layer that reads another layer's KV, `qkv`
  // is q alone [rows, q_dim], and nothing is appended. `out` [rows, q_dim] is contiguous. Rows with
  // partitioned KV come first; their result is added to `sums` instead. `rows` must live until the
  // step has ended. `stores` may be null; otherwise its stores of KV to host memory are waited for.
  void start(const Activations& qkv, const KvLayerView& kv, const HostRows& rows,
             const AttentionParams& params, const Activations& out, const SoftmaxState& sums,
             class KvSwap* stores);
  // Makes ops queued from now on see the result.
  void finish(StallClock& stalls);

  struct Stats {
    uint64_t to_host_bytes = 0, to_device_bytes = 0;
    uint64_t kv_bytes = 0;  // read by the CPU
    double compute_s = 0;   // time the CPU computed
    Stats& operator+=(const Stats& other);
  };
  // Returns the statistics since the last call. Call it only while no work is queued.
  Stats take_stats() { return std::exchange(stats_, {}); }
  // Records the CPU's work in the timeline from now on; null stops recording. Call it only while no
  // work is queued.
  void record(Timeline* timeline) { timeline_ = timeline; }
  // The last key or value so far that exceeded the range of the device's activation type.
  const std::optional<KvFault>& fault() const { return fault_; }

 private:
  void compute(const KvLayerView& kv, const HostRows& rows, const AttentionParams& params,
               bool appends);
  SoftmaxState host_state(int64_t rows) const;
  void bring_up(const Activations& result, const Activations& out);
  Activations as_floats(const Activations& x, Buffer& buffer);
  void find_saturated(const Activations& halves, const Activations& x, KvFault fault);

  Device& device_;
  Device& host_;
  CpuExecutor& executor_;
  DType type_;
  int64_t q_dim_, kv_dim_;
  bool overlap_;
  PinnedBuffer qkv_, attended_;         // in the device's type
  Buffer floats_, attended_floats_;     // what the CPU computes with
  std::vector<int32_t> every_row_;      // 0, 1, 2, ...
  std::unique_ptr<DeviceStream> side_;  // copies q, k and v to host memory
  std::unique_ptr<DeviceEvent> made_;   // the device has computed q, k and v
  std::unique_ptr<HostSignal> ready_;   // q, k and v are in host memory
  uint32_t number_ = 0;                 // of the current work
  Activations out_;                     // where the current result goes
  SoftmaxState sums_;                   // softmax state for rows with partitioned KV
  int heads_ = 0;                       // of rows with partitioned KV; 0: none so far
  PinnedBuffer seen_;                   // softmax state that the CPU has computed
  Buffer arrived_;                      // copy of seen_ on a device that cannot read it
  Stats stats_;
  std::optional<KvFault> fault_;
  Timeline* timeline_ = nullptr;
};

}  // namespace spillway
