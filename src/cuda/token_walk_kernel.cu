// SPDX-License-Identifier: Apache-2.0
#include "cuda/token_walk_kernel.h"

#include <algorithm>

#include "cuda/cuda_error.h"
#include "cuda/token_walk_attention.cuh"
#include "cuda/token_walk_input.cuh"
#include "cuda/token_walk_linear.cuh"

namespace spillway::cuda {
namespace {

#if __CUDA_ARCH__ >= 900

// All blocks have done `arrivals` / gridDim.x phases, and see what the others have written.
__device__ __forceinline__ void meet(uint32_t* counter, uint32_t arrivals) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    uint32_t now = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < arrivals);
  }
  __syncthreads();
}

#endif

template <class T, int D, int G>
__global__ void __launch_bounds__(kWalkThreads, 1) walk_kernel(const __grid_constant__ Walk walk) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float partial[kNormWarps];
  __shared__ PairSums sums;
  const WalkSeat seat{static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                      static_cast<int>(threadIdx.x) / 32};
  const int ring_bytes = walk.stages * kStageBytes;
  uint8_t* const input = shared + kWalkWarps * ring_bytes;
  auto* const barriers = reinterpret_cast<uint64_t*>(input + walk.x_bytes);
  const WalkToken token = WalkToken::of(walk, G, seat.blocks);
  WalkRing<D> ring(walk, token, seat, shared + seat.warp * ring_bytes,
                   barriers + seat.warp * walk.stages);
  auto* const counters = reinterpret_cast<uint32_t*>(walk.scratch);
  for (int i = 0; i < walk.count; ++i) {
    if (i > 0) meet(counters, i * gridDim.x);
    const WalkPhase& phase = walk.phases[i];
    if (phase.kind == WalkKind::kAttention) {
      attention_phase<T, D, G>(walk, phase, token, ring, input);
    } else {
      T* const x = reinterpret_cast<T*>(input);
      take_input(phase, x, partial);
      if (i + 1 < walk.count) expect_norm(walk.phases[i + 1]);
      linear_phase(walk, phase, token, seat, ring, x, sums);
    }
  }
  // Nobody looks at the first counter after having counted here.
  if (threadIdx.x == 0 && atomicAdd(counters + 1, 1) == gridDim.x - 1) {
    counters[0] = 0;
    counters[1] = 0;
  }
#endif
}

using Kernel = void (*)(Walk);

Kernel kernel_for(DType type, int head_dim, bool one_query) {
  const auto of = [&]<class T>() -> Kernel {
    if (head_dim == 64) return one_query ? walk_kernel<T, 64, 1> : walk_kernel<T, 64, 4>;
    return one_query ? walk_kernel<T, 128, 1> : walk_kernel<T, 128, 4>;
  };
  return type == DType::kF16 ? of.template operator()<__half>()
                             : of.template operator()<__nv_bfloat16>();
}

constexpr int kBarrierBytes = 1024;  // of all rings
// What the kernel declares itself.
constexpr int kDeclaredBytes = static_cast<int>(sizeof(PairSums)) + 256;
constexpr int kAttentionBytes = sizeof(AttentionShared<128, 4>);
constexpr int kLeastStages = 4;
static_assert(sizeof(Walk) <= 32764, "a kernel's arguments");

}  // namespace

int walk_input_bytes(int k) { return std::max(kAttentionBytes, (2 * k + 127) / 128 * 128); }

int walk_stages(const GpuShape& gpu, int input_bytes) {
  if (gpu.compute_capability < 90) return 0;
  const int left = gpu.shared_bytes - input_bytes - kBarrierBytes - kDeclaredBytes;
  const int stages = std::min(left / (kWalkWarps * kStageBytes), kBarrierBytes / (8 * kWalkWarps));
  return stages < kLeastStages ? 0 : stages;
}

size_t walk_scratch_bytes(const GpuShape& gpu) {
  return kScratchCounterBytes + static_cast<size_t>(gpu.sms) * sizeof(AttentionPart<128, 4>);
}

void launch_walk(const Walk& walk, DType type, const GpuShape& gpu, cudaStream_t stream) {
  const Kernel kernel =
      kernel_for(type, walk.sequence.head_dim, walk.attends.heads == walk.attends.kv_heads);
  const int bytes = walk.stages * kWalkWarps * kStageBytes + walk.x_bytes + kBarrierBytes;
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(gpu.sms));
  config.blockDim = dim3(kWalkThreads);
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
