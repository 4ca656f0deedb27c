// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_error.h"

#include <cstdlib>
#include <mutex>
#include <unordered_set>

namespace spillway::cuda {

void fail_cuda(cudaError_t error, const char* call) {
  (void)cudaGetLastError();  // the next call starts clean, unless the context itself is lost
  if (error == cudaErrorMemoryAllocation) {
    fail(ErrorCode::kOutOfMemory, "the GPU is out of memory: {} ({})", cudaGetErrorString(error),
         call);
  }
  fail(ErrorCode::kDevice, "CUDA: {} ({}, error {})", cudaGetErrorString(error), call,
       static_cast<int>(error));
}

void prepare_kernel(const void* kernel) {
  static std::mutex mutex;
  static std::unordered_set<const void*> known;
  const std::lock_guard lock(mutex);
  if (!known.insert(kernel).second) return;
  if (std::getenv("SPW_X_NOCARVE") != nullptr) return;
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared));
}

bool overlapping_launches() {
  static const bool enabled = [] {
    if (std::getenv("SPILLWAY_NO_OVERLAPPING_LAUNCHES") != nullptr) return false;
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
  }();
  return enabled;
}

}  // namespace spillway::cuda
