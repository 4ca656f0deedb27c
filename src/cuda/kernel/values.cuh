// SPDX-License-Identifier: Apache-2.0
// Converts elements of activations to and from F32, and selects their C++ type on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "tensor/dtype.h"
#include "tensor/op_kinds.h"

namespace spillway::cuda {

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ __forceinline__ T from_f32(float x);
template <>
__device__ __forceinline__ float from_f32<float>(float x) {
  return x;
}
// Saturates: a finite number never becomes infinite (an infinity and a NaN stay what they are).
template <>
__device__ __forceinline__ __half from_f32<__half>(float x) {
  constexpr float kMost = 65504.0F;
  if (fabsf(x) > kMost && !isinf(x)) x = copysignf(kMost, x);
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

__device__ __forceinline__ float activated(ActivationKind kind, float x) {
  switch (kind) {
    case ActivationKind::kRelu:
      return x < 0.0F ? 0.0F : x;  // a NaN stays
    case ActivationKind::kGelu:
      return 0.5F * x * (1.0F + erff(x * 0.70710678118654752F));
    case ActivationKind::kGeluTanh: {
      const float inner = 0.79788456080286536F * fmaf(0.044715F * x * x, x, x);
      return 0.5F * x * (1.0F + tanhf(inner));
    }
    case ActivationKind::kSilu:
      return x / (1.0F + expf(-x));
  }
  return x;
}

// Sets out[index] = x, where the elements of `out` have this type.
__device__ __forceinline__ void store_as(DType type, std::byte* out, int64_t index, float x) {
  if (type == DType::kF16) {
    reinterpret_cast<__half*>(out)[index] = from_f32<__half>(x);
  } else if (type == DType::kBF16) {
    reinterpret_cast<__nv_bfloat16*>(out)[index] = from_f32<__nv_bfloat16>(x);
  } else {
    reinterpret_cast<float*>(out)[index] = x;
  }
}

// Returns x as it would be read back after store_as().
__device__ __forceinline__ float rounded_as(DType type, float x) {
  if (type == DType::kF16) return to_f32(from_f32<__half>(x));
  if (type == DType::kBF16) return to_f32(from_f32<__nv_bfloat16>(x));
  return x;
}

// Calls f.template operator()<T>() with the C++ type T of `type`.
template <class F>
void with_activation_type(DType type, F&& f) {
  switch (type) {
    case DType::kF32:
      return f.template operator()<float>();
    case DType::kF16:
      return f.template operator()<__half>();
    case DType::kBF16:
      return f.template operator()<__nv_bfloat16>();
    default:
      fail(ErrorCode::kInternal, "internal error: activations of type {}", static_cast<int>(type));
  }
}

}  // namespace spillway::cuda
