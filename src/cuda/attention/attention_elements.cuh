// SPDX-License-Identifier: Apache-2.0
// The elements that tensor cores multiply with KV of each type: queries, and exponentials as
// weights of values.
//
// With F16 KV, and with codes, which become halves, they are halves. With BF16 KV they are BF16:
// halves do not have the range of its keys and values. F16 queries lose three bits then.
// Exponentials are summed after rounding, so that the weights still add up to one.
#pragma once

#include "cuda/attention/attention_page.cuh"
#include "cuda/kernel/warp_ptx.cuh"

namespace spillway::cuda {

template <KvType kType>
struct MmaElements {
  static constexpr bool kBf16 = kType == KvType::kBf16;
  static constexpr uint32_t kOnes = kBf16 ? 0x3f803f80U : 0x3c003c00U;

  // Packs two elements into a word.
  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    return kBf16 ? pack_bf16(low, high) : pack_half2(low, high);
  }
  // Returns an element of a query; the bits are those of the element type.
  __device__ __forceinline__ static __half query(float x) {
    if constexpr (kBf16) {
      return __ushort_as_half(__bfloat16_as_ushort(__float2bfloat16_rn(x)));
    } else {
      return __float2half_rn(clamp_to_half(x));
    }
  }
  __device__ __forceinline__ static uint32_t query2(float low, float high) {
    return kBf16 ? pack_bf16(low, high) : pack_half2(clamp_to_half(low), clamp_to_half(high));
  }
  // c += a * b, like mma_f16() and mma_bf16().
  __device__ __forceinline__ static void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
    if constexpr (kBf16) {
      mma_bf16(c, a0, a1, a2, a3, b0, b1);
    } else {
      mma_f16(c, a0, a1, a2, a3, b0, b1);
    }
  }
};

}  // namespace spillway::cuda
