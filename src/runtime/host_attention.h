// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU, next to KV that lies in host memory: q, k and v of a layer come down, the
// result goes up (FlexGen's delegation). The pages never move. Of sequences that are in several
// memories, what the CPU's part gives goes up as sums (device/attention_parts.h).
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
#include "runtime/host_lane.h"
#include "runtime/micro_batch.h"
#include "runtime/stall_clock.h"
#include "runtime/timeline.h"

namespace spillway {

// Runs beside the device's ops, on the host's lane, one layer of one micro-batch at a time.
// Called from one thread; the devices must outlive it.
class HostAttention {
 public:
  // At most `rows` rows of q_dim + 2 * kv_dim elements of `type`: a layer may have fewer KV heads.
  HostAttention(Device& device, Device& host, HostLane& lane, DType type, int64_t rows,
                int64_t q_dim, int64_t kv_dim, bool overlap);
  // Takes what rows of sequences in parts need beside it now, and not when they come. Throws
  // kOutOfMemory.
  void prepare_parts(int heads);
  ~HostAttention();

  // Queues the work for rows `qkv` [rows, q_dim + 2 the layer's kv_dim], contiguous, on the device:
  // what the compute queue has so far makes them. A layer that reads another's state has q alone
  // [rows, q_dim], and nothing is appended. `out` [rows, q_dim] is contiguous; of rows in
  // parts, which come first, the result is added to `sums` instead. `rows` must live until the step
  // has ended. `stores` may be null: KV on its way to the host that must arrive first.
  void start(const Activations& qkv, const KvLayerView& kv, const HostRows& rows,
             const AttentionParams& params, const Activations& out, const AttentionSums& sums,
             class KvSwap* stores);
  // Ops called from now on see the result.
  void finish(StallClock& stalls);

  struct Stats {
    uint64_t to_host_bytes = 0, to_device_bytes = 0;
    uint64_t kv_bytes = 0;  // read by the CPU
    double compute_s = 0;   // of the CPU
    Stats& operator+=(const Stats& other);
  };
  // Since the last call; while no work is queued.
  Stats take_stats() { return std::exchange(stats_, {}); }
  // Draws what the CPU does from now on; null: not any more. While no work is queued.
  void record(Timeline* timeline) { timeline_ = timeline; }
  // The last key or value so far that the device could not compute in its type.
  const std::optional<KvFault>& fault() const { return fault_; }

 private:
  void compute(const KvLayerView& kv, const HostRows& rows, const AttentionParams& params,
               bool appends);
  AttentionSums host_sums(int64_t rows) const;
  void bring_up(const Activations& result, const Activations& out);
  Activations as_floats(const Activations& x, Buffer& buffer);
  void find_saturated(const Activations& halves, const Activations& x, KvFault fault);

  Device& device_;
  Device& host_;
  HostLane& lane_;
  DType type_;
  int64_t q_dim_, kv_dim_;
  bool overlap_;
  PinnedBuffer qkv_, attended_;         // in the device's type
  Buffer floats_, attended_floats_;     // what the CPU computes with
  std::vector<int32_t> every_row_;      // 0, 1, 2, ...
  std::unique_ptr<DeviceStream> side_;  // brings q, k and v down
  std::unique_ptr<DeviceEvent> made_;   // they are, on the device
  std::unique_ptr<HostSignal> ready_;   // they are here
  uint32_t number_ = 0;                 // of the work at hand
  Activations out_;                     // where its result goes
  AttentionSums sums_;                  // and that of rows in parts
  int heads_ = 0;                       // of rows in parts; 0: none have come
  PinnedBuffer seen_;                   // what the CPU has seen of them
  Buffer arrived_;                      // on the device, where it cannot read the host's memory
  Stats stats_;
  std::optional<KvFault> fault_;
  Timeline* timeline_ = nullptr;
};

}  // namespace spillway
