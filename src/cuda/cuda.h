// SPDX-License-Identifier: Apache-2.0
// NVIDIA GPUs as devices. Built without CUDA, there are none (stub.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace spillway {

struct CudaDeviceOptions {
  int index = 0;              // which GPU
  uint64_t memory_bytes = 0;  // --gpu-memory: nothing is allocated beyond it; 0 = what is free
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
