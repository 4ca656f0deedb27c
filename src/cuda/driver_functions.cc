// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver_functions.h"

#include "base/error.h"
#include "cuda/cuda_error.h"

namespace spillway::cuda {

void* find_driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return function;
}

namespace {

// Both driver functions have these parameters.
using MemoryOp = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

MemoryOp find_memory_op(const char* name) {
  auto* const function = reinterpret_cast<MemoryOp>(find_driver_function(name));
  SPW_CHECK(function != nullptr, kDevice, "this driver has no {}: a newer one is needed", name);
  return function;
}

CUdeviceptr device_address(const uint32_t* host) {
  void* device = nullptr;
  SPW_CUDA_CHECK(cudaHostGetDevicePointer(&device, const_cast<uint32_t*>(host), 0));
  return reinterpret_cast<CUdeviceptr>(device);
}

void check(CUresult result, const char* what) {
  SPW_CHECK(result == CUDA_SUCCESS, kDevice, "{} failed (error {} of the driver)", what,
            static_cast<int>(result));
}

}  // namespace

void stream_write(cudaStream_t stream, uint32_t* host, uint32_t value) {
  static const MemoryOp op = find_memory_op("cuStreamWriteValue32");
  check(op(stream, device_address(host), value, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32");
}

void stream_wait(cudaStream_t stream, const uint32_t* host, uint32_t value) {
  static const MemoryOp op = find_memory_op("cuStreamWaitValue32");
  check(op(stream, device_address(host), value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

}  // namespace spillway::cuda
