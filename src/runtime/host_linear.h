// SPDX-License-Identifier: Apache-2.0
// Linear ops whose matrices are not all on the device: rows that come there are multiplied there,
// rows that lie in host memory on the CPU, at the same time (HeteGen, 4.2).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/small_vector.h"
#include "device/device.h"
#include "memory/pinned_buffer.h"
#include "plan/stream_order.h"
#include "runtime/disk_rows.h"
#include "runtime/host_lane.h"
#include "runtime/model_weights.h"
#include "runtime/stall_clock.h"
#include "runtime/timeline.h"

namespace spillway {

// A linear op as ops have it (device/ops.h), whoever computes which rows of it.
struct LinearOp {
  enum class Kind : uint8_t { kLinears, kActivated, kGated };
  struct Part {        // of each matrix of the op, in its order
    WeightView whole;  // without data where it is not on the device
    WeightView bias;
    Activations out;  // of a gate: scratch
  };
  Kind kind = Kind::kLinears;
  LinearMode mode = LinearMode::kStore;
  ActivationKind activation = ActivationKind::kRelu;
  SmallVector<Part, 3> parts = {};  // of a gated one: gate, up
  Activations x;

  // Rows of each part as they lie somewhere; `first` is their number in the whole.
  struct Rows {
    WeightView view;  // no rows: others of the part are elsewhere
    int64_t first = 0;
  };
  using SomeRows = SmallVector<Rows, 3>;  // of each part
  // For some of the tokens.
  LinearOp of_tokens(int64_t first, int64_t count) const;
  // Multiplies these rows, into their columns of the parts' results.
  void run(Ops& ops, const SomeRows& rows) const;
};

inline constexpr int64_t kFewTokens = 8;

// The CPU's side. Called from one thread; the devices, the lane and the weights must outlive it.
class HostLinear {
 public:
  // For steps by these orders, which name rows in `weights`, of as many tokens as `uses` say.
  // `queue` may be null where none of these are on disk.
  HostLinear(Device& device, Device& host, HostLane& lane, const ModelSpec& spec,
             const WeightViews& weights, std::span<const StreamOrder* const> orders,
             std::span<const CpuRows> uses, IoQueue* queue);

  ~HostLinear() { lane_.reset(); }  // ops may still read the results
  HostLinear(const HostLinear&) = delete;
  HostLinear& operator=(const HostLinear&) = delete;

  // The CPU begins with its rows of the op. Of more tokens than it has room for (a head's, where
  // all of a prompt's logits are wanted) the first ones are waited for.
  void start(const LinearOp& op, const StreamedLinear& streamed, StallClock& stalls);
  // Ops called from now on see the result of what was started.
  void join(StallClock& stalls);

  struct Stats {
    uint64_t to_host_bytes = 0, to_device_bytes = 0;
    uint64_t weight_bytes = 0;  // read by the CPU
    double compute_s = 0;       // of the CPU
    // Of that, ops of kFewTokens at most: their speed is that of memory.
    uint64_t few_bytes = 0;
    double few_s = 0;
    Stats& operator+=(const Stats& other);
  };
  // Since the last call; while no work is queued.
  Stats take_stats() { return std::exchange(stats_, {}); }
  // Draws what the CPU does from now on; null: not any more. While no work is queued.
  void record(Timeline* timeline) { timeline_ = timeline; }

 private:
  void copy_biases(std::span<const StreamOrder* const> orders);
  void begin(const LinearOp& op, const StreamedLinear& streamed);
  int64_t tokens_that_fit(const LinearOp& op, const StreamedLinear& streamed) const;
  void send(const Activations& from, const Activations& to);
  void take(const Activations& from);
  void take_rows(const Activations& from, int64_t first);
  bool goes_straight(const Activations& some) const;
  // Some rows at a time, as many as fit the device's staging memory.
  template <class Fn>
  void in_chunks(const Activations& rows, Fn&& chunk);
  LinearOp on_host(const LinearOp& op, const StreamedLinear& streamed) const;
  void find_on_disk(const StreamedLinear& streamed, LinearOp::SomeRows& rows);

  Device& device_;
  Device& host_;
  HostLane& lane_;
  const WeightViews& weights_;
  std::unique_ptr<HostSignal> ready_;
  PinnedBuffer input_, output_;
  bool ops_reach_them_ = false;
  Buffer staging_;                                                      // on the device
  std::unique_ptr<DiskRows> disk_rows_;                                 // null where there are none
  std::map<std::tuple<int, int, int>, std::vector<std::byte>> biases_;  // layer, op, matrix
  // The work at hand.
  uint32_t number_ = 0;
  LinearOp op_;
  const StreamedLinear* streamed_ = nullptr;
  Stats stats_;
  Timeline* timeline_ = nullptr;
};

}  // namespace spillway
