// SPDX-License-Identifier: Apache-2.0
// What the kernel that goes through a step of one token is given (persistent_step.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernel_args.h"
#include "tensor/dtype.h"
#include "tensor/op_kinds.h"

namespace spillway::cuda {

// About as many as fit the 32,764 bytes of a kernel's arguments, which need no memory of their own
// and are recorded with the launch.
inline constexpr int kStepPhases = 220;

// A row that is normed is held in registers; longer ones are not for the persistent step.
inline constexpr int kStepNormColumns = 8192;

enum class PhaseKind : uint8_t {
  kLinear,  // up to three matrices; StepPhase::epilogue
  kGated,   // gate and up
  kAppend,  // q, k and v, rotated; k and v go to their pages
  kAttention,
};

// What all multiprocessors do before they wait for each other.
struct StepPhase {
  const std::byte* w[3];  // [n, k]
  const float* bias[3];   // [n] or null
  // Of the matrices; kAppend: q, the planes of K and V; kAttention: the result and the two planes.
  std::byte* out[3];
  const KvPlanes* kv_table;  // where these planes are; null: in `out`
  const std::byte* x;        // of the activations' type; with a norm: F32; kAttention: q
  const float* norm_weight;  // null: x is not normed
  const float* norm_bias;    // of NormKind::kLayer
  float norm_eps;
  int32_t n[3];
  int32_t k;
  int32_t pairs;  // of rows, or sets of groups, of all matrices
  PhaseKind kind;
  Epilogue epilogue;
  NormKind norm;
  ActivationKind activation;
  DType out_type;
  DType weights;
  bool joined;    // reads what the phase before reads, and nothing that it writes: no barrier
  int16_t layer;  // kAppend: that KvFault names

  // Of K (1) and V (2), where the phase has them.
  constexpr std::byte* plane(int part) const {
    if (kv_table == nullptr) return out[part];
    return part == 1 ? kv_table->k : kv_table->v;
  }
};

// The one sequence of the step; and how all phases append to it and attend.
struct PhaseSequence {
  const int32_t* position = nullptr;
  const int32_t* block_table = nullptr;
  int64_t block_bytes = 0;
  int head_dim = 0;
  bool operator==(const PhaseSequence&) const = default;
};
struct PhaseAppends {
  const float* angles = nullptr;  // [head_dim] (cos, sin) pairs; null: positions do not rotate
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

// Words at the beginning of the scratch memory: the grid barrier's two, then who has come, by kv
// head and chunk of its queries.
inline constexpr int kMergesAt = 32;

struct StepPhases {
  StepPhase phases[kStepPhases];
  PhaseSequence sequence;
  PhaseAppends appends;
  PhaseAttends attends;
  std::byte* scratch;
  int count;
  int x_bytes;  // of shared memory, for a phase's input
  int stages;   // of each warp's ring
};

}  // namespace spillway::cuda
