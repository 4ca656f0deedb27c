// SPDX-License-Identifier: Apache-2.0
// CUDA's error codes as Spillway's exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace spillway::cuda {

// Throws kOutOfMemory or kDevice with the call, CUDA's words and, where it is known, what to do.
[[noreturn]] void fail_cuda(cudaError_t error, const char* call);

// Whether kernels may start before the one in front of them has ended (launch.cuh): from Hopper on.
bool overlapping_launches();
// Allows it for this thread's launches while it lives; otherwise they do not overlap. On an H200
// steps of one token gain 2%; of several, those gain whose kernels are made for it (linear.h), and
// others lose 4-19%, since blocks that wait take the place of blocks that work.
class OverlappingLaunches {
 public:
  explicit OverlappingLaunches(bool allowed);
  ~OverlappingLaunches();
  OverlappingLaunches(const OverlappingLaunches&) = delete;
  OverlappingLaunches& operator=(const OverlappingLaunches&) = delete;
};

}  // namespace spillway::cuda

#define SPW_CUDA_CHECK(call)                              \
  do {                                                    \
    const cudaError_t spw_cuda_error = (call);            \
    if (spw_cuda_error != cudaSuccess) [[unlikely]]       \
      ::spillway::cuda::fail_cuda(spw_cuda_error, #call); \
  } while (false)
