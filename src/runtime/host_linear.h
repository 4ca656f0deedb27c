// SPDX-License-Identifier: Apache-2.0
// Linear ops whose matrices are not all on the device: the device multiplies the rows that are
// copied to it, and at the same time the CPU multiplies its rows in host memory (HeteGen, 4.2).
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
#include "plan/streaming_schedule.h"
#include "runtime/cpu_executor.h"
#include "runtime/disk_rows.h"
#include "runtime/model_weights.h"
#include "runtime/stall_clock.h"
#include "runtime/timeline.h"

namespace spillway {

// A linear op as ops have it (device/ops.h), independent of which processor computes which rows.
struct LinearOp {
  enum class Kind : uint8_t { kLinears, kActivated, kGated };
  struct Part {        // one for each matrix of the op, in its order
    WeightView whole;  // has no data if it is not on the device
    WeightView bias;
    Activations out;  // scratch for a gate
  };
  Kind kind = Kind::kLinears;
  LinearMode mode = LinearMode::kStore;
  ActivationKind activation = ActivationKind::kRelu;
  SmallVector<Part, 3> parts = {};  // of a gated op: gate, then up
  Activations x;

  // Rows of a part in one place; `first` is the number of the first of them in the whole part.
  struct Rows {
    WeightView view;  // no rows: this place has none of the part
    int64_t first = 0;
  };
  using SomeRows = SmallVector<Rows, 3>;  // one for each part
  // Returns the same op for some of the tokens.
  LinearOp of_tokens(int64_t first, int64_t count) const;
  // Multiplies these rows and writes the results to their columns of the parts' outputs.
  void run(Ops& ops, const SomeRows& rows) const;
};

inline constexpr int64_t kFewTokens = 8;

// Computes the CPU's rows of linear ops. Called from one thread; the devices, the CPU executor and
// the weights must outlive it.
class HostLinear {
 public:
  // For steps with these streaming schedules, which name rows in `weights`, and with as many tokens
  // as `uses` say. `queue` may be null if none of the rows are on disk.
  HostLinear(Device& device, Device& host, CpuExecutor& executor, const ModelSpec& spec,
             const WeightViews& weights, std::span<const StreamingSchedule* const> schedules,
             std::span<const CpuRows> uses, IoQueue* queue);

  ~HostLinear() { executor_.reset(); }  // ops may still read the results
  HostLinear(const HostLinear&) = delete;
  HostLinear& operator=(const HostLinear&) = delete;

  // Starts the CPU on its rows of the op. If the op has more tokens than the buffers hold (a
  // head's, if the logits of a whole prompt are wanted), they are computed in several passes, of
  // which all but the last are waited for.
  void start(const LinearOp& op, const StreamedLinear& streamed, StallClock& stalls);
  // Makes ops queued from now on see the result of what was started.
  void join(StallClock& stalls);

  struct Stats {
    uint64_t to_host_bytes = 0, to_device_bytes = 0;
    uint64_t weight_bytes = 0;  // read by the CPU
    double compute_s = 0;       // time the CPU computed
    // The part of these from ops of at most kFewTokens tokens, which memory bandwidth limits.
    uint64_t few_bytes = 0;
    double few_s = 0;
    Stats& operator+=(const Stats& other);
  };
  // Returns the statistics since the last call. Call it only while no work is queued.
  Stats take_stats() { return std::exchange(stats_, {}); }
  // Records the CPU's work in the timeline from now on; null stops recording. Call it only while no
  // work is queued.
  void record(Timeline* timeline) { timeline_ = timeline; }

 private:
  void copy_biases(std::span<const StreamingSchedule* const> schedules);
  void begin(const LinearOp& op, const StreamedLinear& streamed);
  int64_t tokens_that_fit(const LinearOp& op, const StreamedLinear& streamed) const;
  void send(const Activations& from, const Activations& to);
  void take(const Activations& from);
  void take_rows(const Activations& from, int64_t first);
  bool goes_straight(const Activations& some) const;
  // Calls `chunk` for as many rows at a time as fit into the device's staging memory.
  template <class Fn>
  void in_chunks(const Activations& rows, Fn&& chunk);
  LinearOp on_host(const LinearOp& op, const StreamedLinear& streamed) const;
  void find_on_disk(const StreamedLinear& streamed, LinearOp::SomeRows& rows);

  Device& device_;
  Device& host_;
  CpuExecutor& executor_;
  const WeightViews& weights_;
  std::unique_ptr<HostSignal> ready_;
  PinnedBuffer input_, output_;
  bool ops_reach_them_ = false;
  Buffer staging_;                                                      // on the device
  std::unique_ptr<DiskRows> disk_rows_;                                 // null if there are none
  std::map<std::tuple<int, int, int>, std::vector<std::byte>> biases_;  // layer, op, matrix
  // The current work.
  uint32_t number_ = 0;
  LinearOp op_;
  const StreamedLinear* streamed_ = nullptr;
  Stats stats_;
  Timeline* timeline_ = nullptr;
};

}  // namespace spillway
