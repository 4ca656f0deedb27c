// SPDX-License-Identifier: Apache-2.0
// Reads activations and KV pages (tensor/kv_format.h) element by element, for kernels that are not
// worth a layout of their own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernel_args.h"
#include "tensor/kv_format.h"

namespace spillway::cuda {

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffU;

// Returns element i of a row of F16, BF16 or F32.
__device__ __forceinline__ float load_element(const std::byte* row, DType type, int64_t i) {
  if (type == DType::kF16) return __half2float(reinterpret_cast<const __half*>(row)[i]);
  if (type == DType::kBF16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[i]);
  return reinterpret_cast<const float*>(row)[i];
}
// Saturates to F16's range: a finite number never becomes infinite.
__device__ __forceinline__ float clamp_to_half(float x) {
  return fabsf(x) < INFINITY ? fminf(fmaxf(x, -65504.0F), 65504.0F) : x;
}
__device__ __forceinline__ void store_element(std::byte* row, DType type, int64_t i, float x) {
  if (type == DType::kF16) {
    reinterpret_cast<__half*>(row)[i] = __float2half_rn(clamp_to_half(x));
  } else if (type == DType::kBF16) {
    reinterpret_cast<__nv_bfloat16*>(row)[i] = __float2bfloat16_rn(x);
  } else {
    reinterpret_cast<float*>(row)[i] = x;
  }
}
__host__ __device__ __forceinline__ int element_bytes(DType type) {
  return type == DType::kF32 ? 4 : 2;
}

__device__ __forceinline__ float load_half(const std::byte* at) {
  return __half2float(*reinterpret_cast<const __half*>(at));
}

// KvPageLayout with 32-bit numbers.
struct PageShape {
  int head_dim;
  int mins_at;
  int codes_at;
  int row_bytes;

  __host__ explicit PageShape(const KvPageLayout& layout)
      : head_dim(static_cast<int>(layout.head_dim)),
        mins_at(static_cast<int>(layout.mins_at)),
        codes_at(static_cast<int>(layout.codes_at)),
        row_bytes(static_cast<int>(layout.row_bytes)) {}
};

// Returns element `dim` of token `token`; int4 rows stay rotated.
template <KvType kType, KvPart kPart>
__device__ __forceinline__ float load_kv(const PageShape& s, const std::byte* page, int token,
                                         int dim) {
  if constexpr (kType == KvType::kF32) {
    return reinterpret_cast<const float*>(page)[token * s.head_dim + dim];
  } else if constexpr (kType == KvType::kF16) {
    return __half2float(reinterpret_cast<const __half*>(page)[token * s.head_dim + dim]);
  } else if constexpr (kType == KvType::kBf16) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(page)[token * s.head_dim + dim]);
  } else {
    constexpr int kGroup = static_cast<int>(kKvGroup);
    const int group = dim / kGroup, i = dim % kGroup;
    const float scale = load_half(page + 2 * (group * kKvBlockTokens + token));
    int byte = dim;
    bool high = false;
    if constexpr (kType == KvType::kInt4) {
      const int half_size = min(kGroup, s.head_dim - group * kGroup) / 2;
      high = i >= half_size;
      byte = group * (kGroup / 2) + (high ? i - half_size : i);
    }
    const int at = kPart == KvPart::kKeys
                       ? token * s.row_bytes + byte
                       : byte / 2 * 32 + token / 8 * 16 + byte % 2 * 8 + token % 8;
    const auto code = static_cast<uint8_t>(page[s.codes_at + at]);
    if constexpr (kType == KvType::kInt8) {
      return scale * static_cast<float>(static_cast<int8_t>(code));
    } else {
      const float low = load_half(page + s.mins_at + 2 * (group * kKvBlockTokens + token));
      return fmaf(scale, static_cast<float>(high ? code >> 4 : code & 15), low);
    }
  }
}

// Does what rotate_kv() does, bit for bit, to x [head_dim] in shared memory; called by one warp.
__device__ __forceinline__ void rotate_in_warp(float* x, int head_dim, int lane) {
  constexpr int kGroup = static_cast<int>(kKvGroup);
  for (int first = 0; first < head_dim; first += kGroup) {
    const int size = min(kGroup, head_dim - first);
    const int run = size & -size;
    float* part = x + first;
    for (int half_run = 1; half_run < run; half_run *= 2) {
      __syncwarp();
      const int pair = lane;  // at most 32 pairs in 64 elements
      if (pair < size / 2) {
        const int i = pair / half_run * 2 * half_run + pair % half_run;
        const float a = part[i], b = part[i + half_run];
        part[i] = __fadd_rn(a, b);
        part[i + half_run] = __fsub_rn(a, b);
      }
    }
    __syncwarp();
    const float factor = __fdiv_rn(1.0F, __fsqrt_rn(static_cast<float>(run)));
    for (int i = lane; i < size; i += kWarpSize) part[i] = __fmul_rn(part[i], factor);
  }
  __syncwarp();
}

}  // namespace spillway::cuda
