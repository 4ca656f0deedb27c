// SPDX-License-Identifier: Apache-2.0
// Codes of quantized KV as halves, exactly: a code put below the exponent of 1024 is 1024 + code.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace spillway::cuda {

__device__ __forceinline__ __half2 as_half2(uint32_t x) {
  return *reinterpret_cast<const __half2*>(&x);
}
__device__ __forceinline__ uint32_t bits_of(__half2 x) {
  return *reinterpret_cast<const uint32_t*>(&x);
}
// Two of four unsigned bytes that stand for signed ones + 128.
__device__ __forceinline__ __half2 signed_bytes_to_half2(uint32_t biased, uint32_t selector) {
  const uint32_t x = __byte_perm(biased, 0x64646464U, selector);  // 1024 + byte
  return __hsub2(as_half2(x), as_half2(0x64806480U));             // 1152
}
// The low nibbles of bytes 0 and 2.
__device__ __forceinline__ __half2 nibbles_to_half2(uint32_t word) {
  return __hsub2(as_half2((word & 0x000f000fU) | 0x64006400U), as_half2(0x64006400U));
}
// Two of four bytes below 16.
__device__ __forceinline__ __half2 small_bytes_to_half2(uint32_t word, uint32_t selector) {
  return __hsub2(as_half2(__byte_perm(word, 0x64646464U, selector)), as_half2(0x64006400U));
}

}  // namespace spillway::cuda
