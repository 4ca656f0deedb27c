// SPDX-License-Identifier: Apache-2.0
// Replaces this folder in a build without CUDA.
#include "base/error.h"
#include "cuda/cuda.h"

namespace spillway {

CudaDevices list_cuda_devices() {
  return {.devices = {}, .none_reason = "this spillway was built without CUDA"};
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  fail(ErrorCode::kUnsupported,
       "no device cuda:{}: this spillway was built without CUDA; build it where nvcc is installed",
       options.index);
}

}  // namespace spillway
