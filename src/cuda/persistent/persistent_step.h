// SPDX-License-Identifier: Apache-2.0
// A step of one token as one kernel: all layers, one block per multiprocessor, and the memory never
// waits.
//
// With a launch per op the memory idles at every boundary: blocks end at different times, the next
// kernel's begin, fetch the token's vector, and only then ask for weights (H200, Llama-2-7B: 76% of
// the bandwidth, launches overlapping). Here blocks stay. The ops of the step are phases; between
// two of them is a grid barrier in memory. Which weights a warp multiplies with is known
// from the beginning, and they do not depend on the token: they are copied into the warp's own ring
// in shared memory as far ahead as that reaches, across the ends of phases, so that copies are on
// their way while the blocks wait there. So are the full pages of K and V, which the step does not
// change. Weights are F16, BF16 or packed, of one type a launch or of two that files mix
// (persistent_step_kernel.h).
//
// A row's sum is made in one order, whatever phases surround it: an op gives the same
// bits in a launch of its own and in one with all others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "cuda/attention/attention_call.h"
#include "cuda/kv/kv_append.h"
#include "cuda/linear/linear.h"
#include "cuda/persistent/persistent_step_args.h"

namespace spillway::cuda {

// The sum of a norm's row is needed by every block, so each computes it: norms are not phases but
// part of what the next phase does with its input, and their result comes to memory
// only for others.
struct DeferredNorm {
  NormKind kind = NormKind::kRms;
  Activations x, out;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 0;
};
struct DeferredCopy {
  Activations x, out;
};

// Collects ops. An add_ or defer_ function that returns false has changed nothing: the op is not
// for the persistent step, and the caller launches what was collected and then the op.
class PersistentStep {
 public:
  explicit PersistentStep(const GpuShape& gpu);

  // Whether a GPU can do this at all, with weights of these types.
  static bool serves(const GpuShape& gpu, const WeightTypes& weights);
  // For what blocks hand to each other: zeroed when allocated, left so.
  static size_t scratch_bytes(const GpuShape& gpu);

  bool add_linear(const LinearCall& call);
  bool add_append(const LinearCall& call, const AppendCall& append);
  bool add_attention(const AttentionCall& call);
  bool defer_norm(const DeferredNorm& norm);
  bool defer_copy(const DeferredCopy& copy);  // one row

  bool empty() const { return phases_.count == 0; }
  void launch(std::byte* scratch, cudaStream_t stream);

  // What is deferred and not known to be needless, in this order, to be computed behind launch();
  // then nothing is. At a step's end nobody will read what a phase has read already.
  struct Deferred {
    std::optional<DeferredCopy> copy;
    std::optional<DeferredNorm> norm;
  };
  Deferred take_deferred(bool step_ends);

 private:
  struct Shared {
    std::optional<PhaseSequence> sequence;
    std::optional<PhaseAppends> appends;
    std::optional<PhaseAttends> attends;
  };
  // `weights`: none of attention.
  bool add(StepPhase& phase, DType values, std::optional<DType> weights, const Shared& shared);
  // Shared memory for the input of all phases and of k columns.
  int input_bytes(const WeightTypes& weights, int k) const;
  // Where phase.x is read, and how: false where it cannot be.
  bool find_input(const Activations& x, DType type, StepPhase& phase) const;
  // Whether something deferred would be lost or changed if `data` were written now.
  bool must_keep(const std::byte* data) const;
  void note_read(const Activations& x);
  void note_written(const std::byte* data);

  GpuShape gpu_;
  StepPhases phases_ = {};
  DType values_ = DType::kF16;  // type of activations
  WeightTypes weights_;         // none: only attention so far
  Shared shared_;
  Deferred deferred_;
  bool copy_read_ = false, norm_read_ = false;
  // Results that are not in memory and never will be: their input has changed.
  std::vector<const std::byte*> gone_;
};

}  // namespace spillway::cuda
