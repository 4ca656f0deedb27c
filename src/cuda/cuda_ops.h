// SPDX-License-Identifier: Apache-2.0
// The ops of a decoder step on a GPU: chooses the kernel for each op and owns the memory that they
// need.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cuda/cuda.h"
#include "cuda/graph_cache.h"
#include "cuda/kernel_args.h"
#include "cuda/kv/kv_append.h"
#include "cuda/linear/linear.h"
#include "cuda/linear/linear_library.h"
#include "cuda/persistent/persistent_step.h"
#include "cuda/step_tables.h"
#include "device/device.h"

namespace spillway::cuda {

// Queues kernels on one stream and returns without waiting for them. It is used from one thread. It
// throws kInternal for shapes that do not fit, kOutOfMemory for scratch memory, and kDevice for
// what CUDA reports (also errors of earlier kernels).
class CudaOps final : public Ops, public PartitionedAttention {
 public:
  CudaOps(Device& device, cudaStream_t stream);
  ~CudaOps() override;

  void set_deterministic(bool on) override;
  void set_tuning(const TuningTable* table) override {
    ++generation_;  // recorded steps use kernels of the previous table
    tuning_ = table;
  }
  LinearKernel linear_kernel(const WeightView& w, int64_t tokens) const override;
  void set_score_bounds(const ScoreBounds* bounds) override;
  void set_techniques(const CudaTechniques& techniques);
  // The number of persistent kernels launched or recorded so far (persistent_step.h).
  uint64_t persistent_launches() const { return persistent_launches_; }
  // The number of steps recorded and replayed so far (graph_cache.h).
  int64_t recordings() const { return graphs_.recordings(); }
  int64_t replays() const { return graphs_.replays(); }

  void prepare(const StepLimits& limits) override;
  using Ops::run_step;
  void run_step(const StepBatch& batch, std::span<const StepPart> parts) override;

  void embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
             LinearMode mode) override;
  void scale(const Activations& x, float factor) override;
  void add_norm(NormKind kind, const Activations& x, const WeightView& weight,
                const WeightView& bias, float eps, const Activations& out) override;
  void head_norm(NormKind kind, const Activations& x, const WeightView& weight, float eps) override;
  void norm(NormKind kind, const Activations& x, const WeightView& weight, const WeightView& bias,
            float eps, const Activations& out) override;
  void linear(const WeightView& w, const WeightView& bias, const Activations& x,
              const Activations& out, LinearMode mode) override;
  void linears(std::span<const Projection> parts, const Activations& x) override;
  void activated_linear(ActivationKind kind, const Projection& up, const Activations& x) override;
  void gated_linear(ActivationKind kind, const Projection& gate, const Projection& up,
                    const Activations& x) override;
  void rope_angles(std::span<const int32_t> positions, std::span<const float> inverse_frequency,
                   float scale, const Activations& out) override;
  void rope(const Activations& x, int head_dim, const Activations& angles,
            RopeStyle style) override;
  void kv_append(const Activations& k, const Activations& v, const KvLayerView& kv,
                 std::span<const SequenceSpan> spans) override;
  void rope_and_append(const Activations& q, const Activations& k, const Activations& v,
                       const Activations& angles, RopeStyle style, const KvLayerView& kv,
                       std::span<const SequenceSpan> spans) override;
  void project_and_append(const Projection& q, const Projection& k, const Projection& v,
                          const Activations& x, const Activations& angles, RopeStyle style,
                          const KvLayerView& kv, std::span<const SequenceSpan> spans) override;
  std::optional<KvFault> take_kv_fault() override;
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
  bool can_sample() const override { return true; }
  void sample(const Activations& logits, std::span<const SampleRow> rows,
              std::span<SampledToken> tokens) override;

 private:
  // Returns the stream for kernels that follow, after launching the phases that the persistent step
  // has collected.
  cudaStream_t queue();
  // Calls `add`, which offers an op to the persistent step, and returns whether the persistent step
  // took the op.
  bool try_persistent(const std::function<bool()>& add);
  void launch_persistent(bool step_ends);

  // Returns memory of at least `bytes`, growing `buffer` if needed. Growing waits for the stream
  // and invalidates recorded steps.
  std::byte* grown(Buffer& buffer, size_t bytes, bool zeroed = false);
  // Returns pinned memory for score() and sample(), which read and write it both from the host and
  // from kernels: explicit copies would take longer than the kernels do. Both functions wait for
  // their kernels, so the memory is unused when the next call begins.
  std::byte* exchange(size_t bytes);
  // Runs the call as one launch, or as several where its matrices cannot share one.
  void multiply(LinearCall call);
  bool overlapping_pays(int64_t tokens, const MatrixFacts& matrices) const;
  void multiply_quantized(const LinearCall& call);
  void multiply_plain(const LinearCall& call);
  void multiply_by_library(const LinearCall& call);
  InflectionPoints points_for(const LinearCall& call) const;
  LinearPart part_of(const Projection& projection) const;
  AppendCall append_call(const Activations& q, const Activations& k, const Activations& v,
                         const Activations& angles, RopeStyle style, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans);
  void choose_unified_maximum();
  Activations as_type(const Activations& x, DType type);
  const float* constant(std::span<const float> values);

  Device& device_;
  cudaStream_t stream_;
  GpuShape gpu_;
  bool deterministic_ = false;
  const TuningTable* tuning_ = nullptr;
  std::optional<ScoreBounds> score_bounds_;
  UnifiedMax unified_;
  StepTables tables_;
  GraphCache graphs_;
  CudaTechniques techniques_;
  int step_rows_ = 0;  // 0 outside a step
  PersistentStep step_;
  uint64_t persistent_launches_ = 0;
  bool persistent_ = false;  // a step of one token, whose ops are phases of persistent kernels
  bool collecting_ = false;  // phases wait until the step ends or an op is no phase
  std::unique_ptr<CublasLt> library_;  // null where cuBLASLt is missing
  uint64_t generation_ = 0;            // changes when recorded steps become invalid
  Buffer linear_scratch_, attention_scratch_, prefill_scratch_, topk_scratch_, library_workspace_,
      persistent_scratch_, sums_scratch_;
  Buffer converted_;        // x converted to the type that a matrix needs
  Buffer expanded_;         // a quantized matrix expanded to F16, for many tokens
  PinnedMemory exchanged_;  // inputs and results of score() and sample()
  size_t exchanged_bytes_ = 0;
  PinnedMemory kv_faults_;  // KvFaults::word
  struct Constant {
    std::vector<float> values;
    Buffer on_device;
  };
  std::vector<Constant> constants_;
};

}  // namespace spillway::cuda
