// SPDX-License-Identifier: Apache-2.0
#include "cuda/gpu_shape.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "cuda/cuda_error.h"

namespace spillway::cuda {
namespace {

// Never runs; its attributes tell which architecture this code was compiled for.
__global__ void probe_kernel() {}

GpuShape ask(int device) {
  int major = 0, minor = 0;
  GpuShape gpu;
  SPW_CUDA_CHECK(cudaDeviceGetAttribute(&gpu.sms, cudaDevAttrMultiProcessorCount, device));
  SPW_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  SPW_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  SPW_CUDA_CHECK(
      cudaDeviceGetAttribute(&gpu.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  cudaFuncAttributes probe = {};
  SPW_CUDA_CHECK(cudaFuncGetAttributes(&probe, probe_kernel));
  gpu.compute_capability = std::min(10 * major + minor, probe.ptxVersion);
  return gpu;
}

}  // namespace

GpuShape current_gpu() {
  static std::mutex mutex;
  static std::map<int, GpuShape> known;
  int device = 0;
  SPW_CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  const auto it = known.find(device);
  return it != known.end() ? it->second : known.emplace(device, ask(device)).first->second;
}

}  // namespace spillway::cuda
