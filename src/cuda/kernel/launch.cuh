// SPDX-License-Identifier: Apache-2.0
// Launches kernels one after the other in a stream, overlapping where the hardware supports it.
//
// On Hopper a kernel may start while the previous one still runs (programmatic dependent launch):
// it fetches data that no other kernel writes (weights), calls wait_for_previous(), and only then
// reads or writes memory that ops pass to each other. Every kernel launched by launch() must call
// wait_for_previous() on all threads before touching such memory, also before writing it; one that
// has nothing to prefetch calls it first. launch_dependents() allows the next kernel to be
// scheduled, whose wait_for_previous() still waits for the whole of this one. Both do nothing on
// older GPUs, where kernels run one after the other.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/cuda_error.h"
#include "cuda/overlapping_launches.h"

namespace spillway::cuda {

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Throws kDevice if the launch is refused. More dynamic shared memory than 48 KiB must have been
// allowed for the kernel before (cudaFuncSetAttribute). `cluster` thread blocks with neighbouring x
// can access each other's shared memory; this needs Hopper, elsewhere `cluster` is 1.
template <class... Params, class... Args>
void launch_clusters(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                     int cluster, cudaStream_t stream, Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (overlapping_launches()) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& size = attributes[config.numAttrs++];
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  SPW_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Params(args)...));
}

// Returns how many clusters (see launch_clusters) of a kernel the device runs concurrently; for
// clusters of one thread block this is `sms` times `per_sm`.
template <class... Params>
int max_resident_clusters(void (*kernel)(Params...), dim3 block, size_t shared_bytes, int cluster,
                          int sms, int per_sm) {
  int count = sms * per_sm / cluster;
  if (cluster == 1) return count;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(count * cluster));
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  cudaLaunchAttribute size = {};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  config.attrs = &size;
  config.numAttrs = 1;
  int resident = 0;
  if (cudaOccupancyMaxActiveClusters(&resident, kernel, &config) != cudaSuccess) {
    (void)cudaGetLastError();
    return count;
  }
  return resident > 0 && resident < count ? resident : count;
}

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Args... args) {
  launch_clusters(kernel, grid, block, shared_bytes, 1, stream, args...);
}

}  // namespace spillway::cuda
