// SPDX-License-Identifier: Apache-2.0
// The ops of a decoder step on the host.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "base/thread_pool.h"
#include "cpu/workspace.h"
#include "device/ops.h"
#include "device/partitioned_attention.h"

namespace spillway {

// Implements each op by a function in its own file (linear.h, attention.h, ...), which it gives
// workers and scratch memory. Ops are done on return. Throws what the ops throw: kInternal for
// shapes that do not fit, kOutOfMemory for scratch memory.
class CpuOps : public Ops, public PartitionedAttention {
 public:
  CpuOps(Device& device, ThreadPool& pool) : pool_(pool), workspace_(device, pool.threads()) {}

  void set_deterministic(bool on) override { deterministic_ = on; }
  void set_tuning(const TuningTable* table) override { tuning_ = table; }
  LinearKernel linear_kernel(const WeightView& w, int64_t tokens) const override;

  void embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
             LinearMode mode) override;
  void scale(const Activations& x, float factor) override;
  void add_norm(NormKind kind, const Activations& x, const WeightView& weight,
                const WeightView& bias, float eps, const Activations& out) override;
  void norm(NormKind kind, const Activations& x, const WeightView& weight, const WeightView& bias,
            float eps, const Activations& out) override;
  void linear(const WeightView& w, const WeightView& bias, const Activations& x,
              const Activations& out, LinearMode mode) override;
  void linears(std::span<const Projection> parts, const Activations& x) override;
  void gated_linear(ActivationKind kind, const Projection& gate, const Projection& up,
                    const Activations& x) override;
  void rope_angles(std::span<const int32_t> positions, std::span<const float> inverse_frequency,
                   float scale, const Activations& out) override;
  void rope(const Activations& x, int head_dim, const Activations& angles,
            RopeStyle style) override;
  void kv_append(const Activations& k, const Activations& v, const KvLayerView& kv,
                 std::span<const SequenceSpan> spans) override;
  std::optional<KvFault> take_kv_fault() override {
    return KvFault::from_word(kv_faults_.exchange(0, std::memory_order_relaxed));
  }
  void attention(const Activations& q, const KvLayerView& kv, std::span<const SequenceSpan> spans,
                 const AttentionParams& params, const Activations& out) override;
  void clear_state(const SoftmaxState& sums) override;
  void attend_partition(const Activations& q, const KvLayerView& kv,
                        std::span<const SequenceSpan> spans, const AttentionParams& params,
                        const SoftmaxState& sums) override;
  void merge_state(const SoftmaxState& seen, const SoftmaxState& sums) override;
  void finish_state(const SoftmaxState& sums, const Activations& out) override;
  void activate(ActivationKind kind, const Activations& x) override;
  void gated_activate(ActivationKind kind, const Activations& gate, const Activations& up,
                      const Activations& out) override;
  void gather_rows(const Activations& x, std::span<const int32_t> rows,
                   const Activations& out) override;
  void copy(const Activations& from, const Activations& to) override;
  void score(const Activations& logits, std::span<const int32_t> ids,
             std::span<TokenScore> scores) override;

 private:
  ThreadPool& pool_;
  Workspace workspace_;
  bool deterministic_ = false;
  const TuningTable* tuning_ = nullptr;
  std::atomic<uint32_t> kv_faults_ = 0;  // a KvFault's word
};

}  // namespace spillway
