// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_error.h"

namespace spillway::cuda {

void fail_cuda(cudaError_t error, const char* call) {
  (void)cudaGetLastError();  // clears the error, unless the context itself is lost
  if (error == cudaErrorMemoryAllocation) {
    fail(ErrorCode::kOutOfMemory, "the GPU is out of memory: {} ({})", cudaGetErrorString(error),
         call);
  }
  fail(ErrorCode::kDevice, "CUDA: {} ({}, error {})", cudaGetErrorString(error), call,
       static_cast<int>(error));
}

}  // namespace spillway::cuda
