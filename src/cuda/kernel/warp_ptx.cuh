// SPDX-License-Identifier: Apache-2.0
// Wraps the PTX instructions that attention kernels are made of, one function each; everything else
// in these kernels is plain C++.
//
// How the lanes of a warp hold the fragments of its matrices, for lane = 4 * g + t (PTX ISA, matrix
// fragments):
//   f16 m16n8k16   A: a0 (g, 2t..2t+1)  a1 (g+8, 2t..)  a2 (g, 2t+8..)  a3 (g+8, 2t+8..)
//                  B: b0 (k 2t..2t+1, n g)  b1 (k 2t+8.., n g)
//   tf32 m16n8k8   A: a0 (g, t)  a1 (g+8, t)  a2 (g, t+4)  a3 (g+8, t+4)
//                  B: b0 (t, g)  b1 (t+4, g)
//   both           C: c0, c1 (g, 2t..2t+1)  c2, c3 (g+8, 2t..2t+1)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernel/read_once.cuh"

namespace spillway::cuda {

struct Bytes16 {
  uint32_t r[4];
};

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c += a * b.
__device__ __forceinline__ void mma_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#elif __CUDA_ARCH__ >= 750
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, "
      "%2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, "
      "%2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a2), "r"(a3), "r"(b1));
#endif
}
// d = c + a * b.
__device__ __forceinline__ void mma_f16_onto(float (&d)[4], const float (&c)[4], uint32_t a0,
                                             uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                             uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]),
        "f"(c[3]));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = c[i];
  mma_f16(d, a0, a1, a2, a3, b0, b1);
#endif
}
// Does the same as mma_f16() with BF16. It needs sm_80 and is never called on older GPUs.
__device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}
// Loads four 8x8 matrices of 16-bit elements. Lane i passes the address of row i % 8 of matrix i /
// 8, and receives elements (g, 2t..2t+1) of each matrix, or of their transposes.
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], const void* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&x)[4], const void* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}

// Transposes an 8x8 matrix of 16-bit elements, of which each lane holds elements (g, 2t..2t+1).
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
#endif
  return y;
}

// Copies 16 bytes to shared memory asynchronously, or writes zeros if `copy` is false.
template <bool kOnce = false>
__device__ __forceinline__ void copy_async16(void* to, const void* from, bool copy) {
#if __CUDA_ARCH__ >= 800
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kOnce) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(at),
                 "l"(from), "r"(copy ? 16 : 0), "l"(read_once())
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                 "r"(copy ? 16 : 0)
                 : "memory");
  }
#else
  *static_cast<uint4*>(to) = copy ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#endif
}
// Copies 16 bytes that are read only once, or does nothing if `copy` is false.
__device__ __forceinline__ void copy_async16_if(bool copy, uint32_t to_shared, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "@p cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %3;\n"
      "}\n" ::"r"(to_shared),
      "l"(from), "r"(static_cast<int>(copy)), "l"(read_once())
      : "memory");
#endif
}
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all but the last `kPending` groups of this thread's copies have arrived.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

__device__ __forceinline__ uint32_t pack_half2(float low, float high) {
  const __half2 x = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&x);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&x);
}
__device__ __forceinline__ float2 unpack_half2(uint32_t x) {
  return __half22float2(*reinterpret_cast<const __half2*>(&x));
}

}  // namespace spillway::cuda
