// SPDX-License-Identifier: Apache-2.0
// The kernel that walks (token_walk.h), for one kind of weights: PlainWeights of
// token_walk_linear.cuh or PackedWeights of token_walk_groups.cuh.
#pragma once

#include "cuda/cuda_error.h"
#include "cuda/kernel/wgmma.cuh"
#include "cuda/persistent/persistent_step_attention.cuh"
#include "cuda/persistent/persistent_step_input.cuh"
#include "cuda/persistent/persistent_step_kernel.h"
#include "cuda/persistent/persistent_step_list.h"

namespace spillway::cuda {

// Beside the warps that compute, four of which one asks for copies: registers are handed over among
// fours. All have 168 to begin with.
inline constexpr int kWalkBlockThreads = kWalkThreads + 128;
inline constexpr int kFeederRegisters = 56, kWalkerRegisters = 224;
static_assert(kFeederRegisters + 2 * kWalkerRegisters == 3 * 168);

#if __CUDA_ARCH__ >= 900

// All blocks have done `arrivals` / gridDim.x phases, and see what the others have written.
__device__ __forceinline__ void meet(uint32_t* counter, uint32_t arrivals) {
  sync_walkers();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    uint32_t now = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < arrivals);
  }
  sync_walkers();
}

template <class Weights, int D, int G>
__device__ __forceinline__ void walk_through(const Walk& walk) {
  using Pieces = typename Weights::template Pieces<D>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float partial[kNormWarps];
  __shared__ typename Weights::Sums sums;
  const WalkSeat seat{static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                      static_cast<int>(threadIdx.x) / 32};
  uint8_t* const input = shared + kWalkWarps * walk.stages * Pieces::kStageBytes;
  const WalkRings<Pieces> rings{shared, shared_address(input + walk.x_bytes), walk.stages};
  if (threadIdx.x == 0) rings.init();
  __syncthreads();
  const WalkToken token = WalkToken::of(walk, G, seat.blocks);
  if (seat.warp >= kWalkWarps) {
    give_registers<kFeederRegisters>();
    if (seat.warp == kWalkWarps) feed_rings<Pieces, D>(walk, token, seat, rings);
    return;
  }
  take_registers<kWalkerRegisters>();
  WalkRing<Pieces> ring(rings, seat.warp);
  auto* const counters = reinterpret_cast<uint32_t*>(walk.scratch);
  for (int i = 0; i < walk.count; ++i) {
    if (i > 0) meet(counters, i * gridDim.x);
    const WalkPhase& phase = walk.phases[i];
    if (phase.kind == WalkKind::kAttention) {
      attention_phase<typename Weights::Value, D, G>(walk, phase, token, ring, input);
    } else {
      Weights::take_input(phase, seat, input, partial);
      if (i + 1 < walk.count) expect_norm(walk.phases[i + 1]);
      Weights::template multiply<D>(walk, phase, token, seat, ring, input, sums);
    }
  }
  // Nobody looks at the first counter after having counted here.
  if (threadIdx.x == 0 && atomicAdd(counters + 1, 1) == gridDim.x - 1) {
    counters[0] = 0;
    counters[1] = 0;
  }
}

#endif

// The weights are named by a tag, for the host as well.
template <class T>
struct PlainWeights;
template <class Block>
struct PackedWeights;

template <class Weights, int D, int G>
__global__ void __launch_bounds__(kWalkBlockThreads, 1)
    walk_kernel(const __grid_constant__ Walk walk) {
#if __CUDA_ARCH__ >= 900
  walk_through<Weights, D, G>(walk);
#endif
}

inline constexpr int kWalkBarrierBytes = 1024;  // of all rings

// `Pieces`: of heads of any size, which does not change their bytes.
template <class Weights, class Pieces>
void launch_walk_of(const Walk& walk, const GpuShape& gpu, cudaStream_t stream) {
  const bool one_query = walk.attends.heads == walk.attends.kv_heads;
  const auto kernel =
      walk.sequence.head_dim == 64
          ? (one_query ? walk_kernel<Weights, 64, 1> : walk_kernel<Weights, 64, 4>)
          : (one_query ? walk_kernel<Weights, 128, 1> : walk_kernel<Weights, 128, 4>);
  const int bytes =
      walk.stages * kWalkWarps * Pieces::kStageBytes + walk.x_bytes + kWalkBarrierBytes;
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(gpu.sms));
  config.blockDim = dim3(kWalkBlockThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  // Blocks wait for each other: all of them run, or none.
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  config.attrs = &together;
  config.numAttrs = 1;
  SPW_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, walk));
}

}  // namespace spillway::cuda
