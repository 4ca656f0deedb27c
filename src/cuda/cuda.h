// SPDX-License-Identifier: Apache-2.0
// NVIDIA GPUs as devices. Built without CUDA, there are none (stub.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace spillway {

// What makes steps fast beyond plain kernels. Benchmarks leave one out to measure what it brings
// (bench/gpu_ablation.cc); everybody else takes all.
struct CudaTechniques {
  bool graphs = true;           // steps are recorded as CUDA graphs and replayed
  bool persistent_step = true;  // a step of one token is one launch
  bool gemv = true;             // kernels for one token (FlashDecoding++, section 5)
  bool flat_gemm = true;        // kernels for few tokens (section 4)
  bool unified_maximum = true;  // attention without a maximum per part (section 3)
  bool overlapping_launches = true;
  bool operator==(const CudaTechniques&) const = default;
};

struct CudaDeviceOptions {
  int index = 0;              // which GPU
  uint64_t memory_bytes = 0;  // --gpu-memory: nothing is allocated beyond it; 0 = what is free
  CudaTechniques techniques = {};
};

// The GPUs that the driver shows; none where there is no driver, with the reason.
struct CudaDevices {
  std::vector<DeviceInfo> devices;
  std::string none_reason;  // "built without CUDA", "no NVIDIA driver", ...
};
CudaDevices list_cuda_devices();

// Throws kInvalidArgument for a GPU that does not exist, kDevice when it cannot be used.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

}  // namespace spillway
