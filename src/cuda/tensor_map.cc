// SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "cuda/cuda_error.h"
#include "cuda/driver_functions.h"

namespace spillway::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode() {
  static const auto function =
      reinterpret_cast<Encode>(find_driver_function("cuTensorMapEncodeTiled"));
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
