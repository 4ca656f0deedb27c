// SPDX-License-Identifier: Apache-2.0
// How kernels are launched: behind each other in a stream, overlapping where the hardware can.
//
// On Hopper a kernel may start while the one before it still runs (programmatic dependent launch):
// it fetches what does not depend on others (weights), calls wait_for_previous(), and only then
// reads or writes anything that ops hand to each other. Every kernel launched by launch() must call
// wait_for_previous() on all threads before touching such memory, also to write; one that has
// nothing to prefetch calls it first. let_next_start() says that the next kernel may be scheduled;
// what it waits for is still the whole of this one. Both do nothing on older GPUs, where kernels
// run one after the other.
#pragma once

#include <cuda_runtime.h>

#include "cuda/cuda_error.h"

namespace spillway::cuda {

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Throws kDevice when the launch is refused. Larger dynamic shared memory than 48 KiB must have
// been allowed for the kernel before (cudaFuncSetAttribute).
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = overlapping_launches() ? 1 : 0;
  SPW_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Params(args)...));
}

}  // namespace spillway::cuda
