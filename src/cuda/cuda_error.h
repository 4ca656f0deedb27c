// SPDX-License-Identifier: Apache-2.0
// Turns CUDA's error codes into Spillway's exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace spillway::cuda {

// Throws kOutOfMemory or kDevice. The message has CUDA's text and the call that failed.
[[noreturn]] void fail_cuda(cudaError_t error, const char* call);

}  // namespace spillway::cuda

#define SPW_CUDA_CHECK(call)                              \
  do {                                                    \
    const cudaError_t spw_cuda_error = (call);            \
    if (spw_cuda_error != cudaSuccess) [[unlikely]]       \
      ::spillway::cuda::fail_cuda(spw_cuda_error, #call); \
  } while (false)
