// SPDX-License-Identifier: Apache-2.0
// NVIDIA GPUs as devices. A build without CUDA has none (stub.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace spillway {

// The optimizations beyond plain kernels. Benchmarks switch one off to measure what it gains
// (bench/gpu_ablation.cc); all other callers keep them all.
struct CudaTechniques {
  bool graphs = true;           // steps are recorded as CUDA graphs and replayed
  bool persistent_step = true;  // a step of one token is one kernel launch
  bool gemv = true;             // kernels for one token (FlashDecoding++, section 5)
  bool flat_gemm = true;        // kernels for few tokens (section 4)
  bool unified_maximum = true;  // attention without a maximum per partition (section 3)
  bool overlapping_launches = true;
  bool operator==(const CudaTechniques&) const = default;
};

struct CudaDeviceOptions {
  int index = 0;              // which GPU
  uint64_t memory_bytes = 0;  // --gpu-memory: the limit of allocations; 0 = all that is free
  CudaTechniques techniques = {};
};

// The GPUs that the driver reports. The list is empty where there is no driver; `none_reason` says
// why.
struct CudaDevices {
  std::vector<DeviceInfo> devices;
  std::string none_reason;  // "built without CUDA", "no NVIDIA driver", ...
};
CudaDevices list_cuda_devices();

// Throws kInvalidArgument for a GPU that does not exist and kDevice if it cannot be used.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

}  // namespace spillway
