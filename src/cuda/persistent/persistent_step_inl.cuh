// SPDX-License-Identifier: Apache-2.0
// The persistent kernel (persistent_step.h), as a template over the kind of weights: PlainWeights
// of persistent_step_linear.cuh, or PackedWeights or MixedWeights of persistent_step_groups.cuh.
#pragma once

#include "cuda/cuda_error.h"
#include "cuda/kernel/wgmma.cuh"
#include "cuda/persistent/persistent_step_attention.cuh"
#include "cuda/persistent/persistent_step_input.cuh"
#include "cuda/persistent/persistent_step_launch.h"
#include "cuda/persistent/persistent_step_list.h"

namespace spillway::cuda {

// A thread block has four warps beside those that compute, of which one issues copies: registers
// are moved between warpgroups of four warps. Every thread starts with 168.
inline constexpr int kStepBlockThreads = kStepThreads + 128;
inline constexpr int kFeederRegisters = 56, kComputeRegisters = 224;
static_assert(kFeederRegisters + 2 * kComputeRegisters == 3 * 168);

#if __CUDA_ARCH__ >= 900

// Waits until all thread blocks have arrived `arrivals` / gridDim.x times, and makes their writes
// visible.
__device__ __forceinline__ void grid_barrier(uint32_t* counter, uint32_t arrivals) {
  sync_compute_warps();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    uint32_t now = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < arrivals);
  }
  sync_compute_warps();
}

template <class Weights, int D, int G>
__device__ __forceinline__ void run_phases(const StepPhases& step) {
  using Pieces = typename Weights::template Pieces<D>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float partial[kNormWarps];
  __shared__ typename Weights::Sums sums;
  const GridSeat seat{static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                      static_cast<int>(threadIdx.x) / 32};
  uint8_t* const input = shared + kStepWarps * step.stages * Pieces::kStageBytes;
  const StepRings<Pieces> rings{shared, shared_address(input + step.x_bytes), step.stages};
  if (threadIdx.x == 0) rings.init();
  __syncthreads();
  const StepToken token = StepToken::of(step, G, seat.blocks);
  if (seat.warp >= kStepWarps) {
    give_registers<kFeederRegisters>();
    if (seat.warp == kStepWarps) feed_rings<Pieces, D>(step, token, seat, rings);
    return;
  }
  take_registers<kComputeRegisters>();
  StepRing<Pieces> ring(rings, seat.warp);
  auto* const counters = reinterpret_cast<uint32_t*>(step.scratch);
  for (uint32_t i = 0, barriers = 0; i < static_cast<uint32_t>(step.count); ++i) {
    const StepPhase& phase = step.phases[i];
    if (phase.joined) {
      sync_compute_warps();  // the input was read
    } else if (i > 0) {
      grid_barrier(counters, ++barriers * gridDim.x);
    }
    if (phase.kind == PhaseKind::kAttention) {
      attention_phase<typename Weights::Value, D, G>(step, phase, token, ring, input);
    } else {
      Weights::take_input(phase, seat, input, partial);
      if (i + 1 < static_cast<uint32_t>(step.count)) expect_norm(step.phases[i + 1]);
      Weights::template multiply<D>(step, phase, token, seat, ring, input, sums);
    }
  }
  // A thread block that has counted here no longer reads the first counter, so the last one resets
  // both.
  if (threadIdx.x == 0 && atomicAdd(counters + 1, 1) == gridDim.x - 1) {
    counters[0] = 0;
    counters[1] = 0;
  }
}

#endif

// The kinds of weights are declared here because the host names them as template arguments, too.
template <class T>
struct PlainWeights;
template <class Block>
struct PackedWeights;
template <class First, class Second, DType kSecond>
struct MixedWeights;

template <class Weights, int D, int G>
__global__ void __launch_bounds__(kStepBlockThreads, 1)
    persistent_kernel(const __grid_constant__ StepPhases step) {
#if __CUDA_ARCH__ >= 900
  run_phases<Weights, D, G>(step);
#endif
}

inline constexpr int kStepBarrierBytes = 1024;  // for the barriers of all rings

// `Pieces` may be of any head size, which does not change its stages' bytes.
template <class Weights, class Pieces>
void launch_persistent_of(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  const bool one_query = step.attends.heads == step.attends.kv_heads;
  const auto kernel =
      step.sequence.head_dim == 64
          ? (one_query ? persistent_kernel<Weights, 64, 1> : persistent_kernel<Weights, 64, 4>)
          : (one_query ? persistent_kernel<Weights, 128, 1> : persistent_kernel<Weights, 128, 4>);
  const int bytes =
      step.stages * kStepWarps * Pieces::kStageBytes + step.x_bytes + kStepBarrierBytes;
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(gpu.sms));
  config.blockDim = dim3(kStepBlockThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  // The launch is cooperative: thread blocks wait for each other, so all of them must run or none.
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  config.attrs = &together;
  config.numAttrs = 1;
  SPW_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, step));
}

}  // namespace spillway::cuda
