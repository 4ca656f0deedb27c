// SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "cuda/cuda_error.h"

namespace spillway::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: a binary with CUDA starts where there is no driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<Encode>(function);
}

Encode encode() {
  static const Encode function = find_encode();
  return function;
}

}  // namespace

bool has_tensor_maps() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9 && encode() != nullptr;
}

CUtensorMap make_tensor_map(const TensorMapShape& s) {
  SPW_ASSERT(encode() != nullptr && (s.dtype == DType::kF16 || s.dtype == DType::kBF16));
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(s.cols), static_cast<cuuint64_t>(s.rows)};
  const cuuint64_t stride_bytes[] = {static_cast<cuuint64_t>(s.stride) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(s.box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result = encode()(
      &map,
      s.dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      2, const_cast<std::byte*>(s.data), sizes, stride_bytes, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  SPW_CHECK(result == CUDA_SUCCESS, kDevice, "CUDA: no tensor map for a [{}, {}] matrix (error {})",
            s.rows, s.cols, static_cast<int>(result));
  return map;
}

}  // namespace spillway::cuda
