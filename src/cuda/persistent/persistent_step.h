// SPDX-License-Identifier: Apache-2.0
// Runs a step of one token as one kernel: it computes all layers with one thread block per
// multiprocessor, and its memory reads never pause.
//
// With a launch per op the memory idles at every boundary: thread blocks end at different times,
// those of the next kernel start, fetch the token's vector, and only then request weights (H200,
// Llama-2-7B: 76% of the bandwidth, with overlapping launches). Here the thread blocks stay
// resident. The ops of the step are phases, and between two phases there is a grid barrier in
// memory. Which weights a warp multiplies with is known from the beginning and does not depend on
// the token: they are copied into the warp's own ring of stages in shared memory as far ahead as it
// has room, across the ends of phases, so that copies are in flight while the thread blocks wait at
// a barrier. The same goes for full pages of K and V, which the step does not change. Weights are
// F16, BF16 or packed; a launch has weights of one type, or of two that files mix
// (persistent_step_kernel.h).
//
// A row's sum is made in one order, whatever phases surround it: an op gives the same bits in a
// launch of its own and in one with all others.
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

// A norm that has not been computed yet. Every thread block needs the sum over the norm's row, so
// each computes it: norms are not phases but part of the way in which the next phase reads its
// input. The result is written to memory only if other kernels need it.
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

// Collects ops for a launch. An add_ or defer_ function that returns false has changed nothing: the
// persistent step cannot take the op, and the caller launches the collected ops and then the op
// itself.
class PersistentStep {
 public:
  explicit PersistentStep(const GpuShape& gpu);

  // Returns whether a GPU supports this at all, with weights of these types.
  static bool serves(const GpuShape& gpu, const WeightTypes& weights);
  // The size of the memory that thread blocks exchange data through. The caller zeroes it once;
  // every launch leaves its counters at zero.
  static size_t scratch_bytes(const GpuShape& gpu);

  bool add_linear(const LinearCall& call);
  bool add_append(const LinearCall& call, const AppendCall& append);
  bool add_attention(const AttentionCall& call);
  bool defer_norm(const DeferredNorm& norm);
  bool defer_copy(const DeferredCopy& copy);  // of one row

  bool empty() const { return phases_.count == 0; }
  void launch(std::byte* scratch, cudaStream_t stream);

  // Returns the deferred ops, in this order, to be computed after launch(), and forgets them. Those
  // known to be needless are left out: at the end of a step, results that a phase has already read
  // have no other reader.
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
  // `weights` is nullopt for attention.
  bool add(StepPhase& phase, DType values, std::optional<DType> weights, const Shared& shared);
  // Returns the shared memory needed for the input of all phases so far and of one with k columns.
  int input_bytes(const WeightTypes& weights, int k) const;
  // Sets where and how the phase reads x. Returns false if it cannot.
  bool find_input(const Activations& x, DType type, StepPhase& phase) const;
  // Returns whether writing to `data` now would lose or change something deferred.
  bool must_keep(const std::byte* data) const;
  void note_read(const Activations& x);
  void note_written(const std::byte* data);

  GpuShape gpu_;
  StepPhases phases_ = {};
  DType values_ = DType::kF16;  // type of activations
  WeightTypes weights_;         // empty while there is only attention
  Shared shared_;
  Deferred deferred_;
  bool copy_read_ = false, norm_read_ = false;
  // Outputs that were deferred and can no longer be computed, because their input has changed.
  std::vector<const std::byte*> gone_;
};

}  // namespace spillway::cuda
