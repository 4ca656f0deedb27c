// SPDX-License-Identifier: Apache-2.0
// Converts codes of quantized KV to halves, exactly: the code's bits below an exponent of 1024 are
// 1024 + code.
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
// Converts two of four bytes that hold signed numbers plus 128.
__device__ __forceinline__ __half2 signed_bytes_to_half2(uint32_t biased, uint32_t selector) {
  const uint32_t x = __byte_perm(biased, 0x64646464U, selector);  // 1024 + byte
  return __hsub2(as_half2(x), as_half2(0x64806480U));             // 1152
}
// Converts two of four bytes below 16.
__device__ __forceinline__ __half2 small_bytes_to_half2(uint32_t word, uint32_t selector) {
  return __hsub2(as_half2(__byte_perm(word, 0x64646464U, selector)), as_half2(0x64006400U));
}

// The functions below leave out the subtraction: they return pairs of halves that are codes plus a
// constant, exactly. It is 1024 for bytes, and 1152 for signed bytes whose signs have been flipped
// with kSigns.
constexpr uint32_t kSigns = 0x80808080U;
__device__ __forceinline__ uint32_t biased_bytes(uint32_t word, bool last) {
  return __byte_perm(word, 0x64646464U, last ? 0x4342U : 0x4140U);
}
// Computes (x & mask) | bits in one instruction: left to itself, the compiler makes two if they are
// constants.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}
// For bytes 0 and 2: the low nibbles + 1024, and the high ones + 64, whose lowest bit is bit 4.
__device__ __forceinline__ uint32_t biased_low_nibbles(uint32_t word) {
  return and_or(word, 0x000f000fU, 0x64006400U);
}
__device__ __forceinline__ uint32_t biased_high_nibbles(uint32_t word) {
  return and_or(word, 0x00f000f0U, 0x54005400U);
}

}  // namespace spillway::cuda
