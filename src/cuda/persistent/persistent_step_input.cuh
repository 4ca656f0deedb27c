// SPDX-License-Identifier: Apache-2.0
// Loads the input of the persistent step's linear layers into the shared memory of every thread
// block (persistent_step.h).
#pragma once

#include "cuda/persistent/persistent_step_ring.cuh"
#include "cuda/rows/row_norm.cuh"

namespace spillway::cuda {

inline constexpr int kStepNormRounds = kStepNormColumns / (4 * kNormThreads);

#if __CUDA_ARCH__ >= 900

template <NormKind kKind, class T>
__device__ __forceinline__ void norm_input(const StepPhase& phase, T* to, float* partial) {
  constexpr int kSlots = kNormThreads / kStepThreads;
  const int fours = phase.k / 4;
  const auto* const row = reinterpret_cast<const float4*>(phase.x);
  NormFours<kStepThreads, kStepNormRounds> v, w, b;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
#pragma unroll
    for (int j = 0; j < kStepNormRounds; ++j) {
      const int i = norm_four<kStepThreads>(s, j);
      v[s][j] = i < fours ? __ldcg(row + i) : float4{0, 0, 0, 0};
      if (i >= fours) continue;
      w[s][j] = __ldg(reinterpret_cast<const float4*>(phase.norm_weight) + i);
      if constexpr (kKind == NormKind::kLayer) {
        b[s][j] = __ldg(reinterpret_cast<const float4*>(phase.norm_bias) + i);
      }
    }
  }
  const float scale =
      norm_scale<kKind, kStepThreads, kStepNormRounds>(v, phase.k, phase.norm_eps, partial);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
#pragma unroll
    for (int j = 0; j < kStepNormRounds; ++j) {
      const int i = norm_four<kStepThreads>(s, j);
      if (i < fours) store_normed<kKind>(to + 4 * i, v[s][j], scale, w[s][j], b[s][j]);
    }
  }
}

// Writes the norm of phase.x to `to`.
template <class T>
__device__ __forceinline__ void take_normed(const StepPhase& phase, T* to, float* partial) {
  if (phase.norm == NormKind::kRms) {
    norm_input<NormKind::kRms>(phase, to, partial);
  } else {
    norm_input<NormKind::kLayer>(phase, to, partial);
  }
}

// Prefetches a norm's weights into the L2 cache before every thread block reads them.
__device__ __forceinline__ void expect_norm(const StepPhase& phase) {
  if (phase.norm_weight == nullptr || threadIdx.x != 0) return;
  for (int i = 32 * static_cast<int>(blockIdx.x); i < phase.k; i += 32 * gridDim.x) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(phase.norm_weight + i));
    if (phase.norm_bias != nullptr)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(phase.norm_bias + i));
  }
}

#endif

}  // namespace spillway::cuda
