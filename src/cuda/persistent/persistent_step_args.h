// SPDX-License-Identifier: Apache-2.0
// The arguments of the kernel that computes a step of one token (persistent_step.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernel_args.h"
#include "tensor/dtype.h"
#include "tensor/op_kinds.h"

namespace spillway::cuda {

// About as many phases as fit into the 32,764 bytes of a kernel's arguments, which need no memory
// of their own and are recorded with the launch.
inline constexpr int kStepPhases = 220;

// A row to be normalized is held in registers, so the persistent step does not take longer ones.
inline constexpr int kStepNormColumns = 8192;

enum class PhaseKind : uint8_t {
  kLinear,  // up to three matrices, with StepPhase::epilogue
  kGated,   // the matrices gate and up
  kAppend,  // q, k and v with RoPE; k and v are written to their pages
  kAttention,
};

// The work of all thread blocks between two grid barriers (see `joined`).
struct StepPhase {
  const std::byte* w[3];  // [n, k]
  const float* bias[3];   // [n] or null
  // The output of each matrix. kAppend: q and the planes of K and V; kAttention: the result and the
  // two planes.
  std::byte* out[3];
  const KvPlanes* kv_table;  // where the current planes are; null: in `out`
  const std::byte* x;        // in the activations' type, or F32 if a norm is applied; kAttention: q
  const float* norm_weight;  // null: no norm is applied to x
  const float* norm_bias;    // for NormKind::kLayer
  float norm_eps;
  int32_t n[3];
  int32_t k;
  int32_t pairs;  // pairs of rows, or sets of groups, of all matrices
  PhaseKind kind;
  Epilogue epilogue;
  NormKind norm;
  ActivationKind activation;
  DType out_type;
  DType weights;
  bool joined;    // reads the same input as the previous phase and none of its output: no barrier
  int16_t layer;  // kAppend: the layer that a KvFault names

  // The plane of K (part 1) or V (part 2), where the phase has them.
  constexpr std::byte* plane(int part) const {
    if (kv_table == nullptr) return out[part];
    return part == 1 ? kv_table->k : kv_table->v;
  }
};

// The step's one sequence, and the properties that all its appends and all its attention phases
// share.
struct PhaseSequence {
  const int32_t* position = nullptr;
  const int32_t* block_table = nullptr;
  int64_t block_bytes = 0;
  int head_dim = 0;
  bool operator==(const PhaseSequence&) const = default;
};
struct PhaseAppends {
  const float* angles = nullptr;  // [head_dim] (cos, sin) pairs; null: no RoPE
  bool interleaved = false;
  uint32_t* faults = nullptr;  // KvFaults::word
  bool operator==(const PhaseAppends&) const = default;
};
struct PhaseAttends {
  int heads = 0;
  int kv_heads = 0;
  int window = 0;
  float scale = 0;
  bool operator==(const PhaseAttends&) const = default;
};

// Index of the first merge counter in the scratch memory's words. The grid barrier has the first
// two words; a merge counter per kv head and chunk of its queries counts the thread blocks that
// have stored their softmax state.
inline constexpr int kMergesAt = 32;

struct StepPhases {
  StepPhase phases[kStepPhases];
  PhaseSequence sequence;
  PhaseAppends appends;
  PhaseAttends attends;
  std::byte* scratch;
  int count;
  int x_bytes;  // shared memory for a phase's input
  int stages;   // in each warp's ring
};

}  // namespace spillway::cuda
