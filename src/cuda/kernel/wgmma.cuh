// SPDX-License-Identifier: Apache-2.0
// Hopper's matrix instructions of a warpgroup (128 threads); sm_90a only.
//
// The accumulator d has 64 x 2 n elements, n in each thread: warp w has rows 16 w to 16 w + 15, and
// in lane 4 g + t the element d[4 j + 2 h + e] is row g + 8 h, column 8 j + 2 t + e, as in
// mma.m16n8k16.
#pragma once

#include <cstdint>

namespace spillway::cuda {

// Describes a matrix in shared memory whose rows of 64 elements (128 bytes) are swizzled as tensor
// copies leave them; 8 rows take 1024 bytes. `leading` is the distance in bytes to the next 64
// elements of a row, where rows do not run along the summed dimension.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t leading = 16) {
  constexpr uint64_t kEightRows = 1024 >> 4, kSwizzle128 = 1;
  return (address >> 4 & 0x3fff) | uint64_t{leading >> 4 & 0x3fff} << 16 | kEightRows << 32 |
         kSwizzle128 << 62;
}

// Called by all threads of a warpgroup. They give registers back, or take more, and then have
// `kCount` each.
template <int kCount>
__device__ __forceinline__ void give_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

__device__ __forceinline__ void wgmma_fence() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Makes the compiler compute d before the next wait.
template <int kCount>
__device__ __forceinline__ void compute_now(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Waits until all but the last `kPending` groups have been added, and tells the compiler that d has
// changed.
template <int kPending, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&d)[kCount]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  compute_now(d);
#else
  (void)d;
#endif
}

// Waits until all but the last `kPending` groups have been added, where none of their results is
// read yet.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_for_others() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// The names of an accumulator's 4 to 64 registers in an instruction, and the same as its operands.
#define SPW_WGMMA_NAMES_4 "%0, %1, %2, %3"
#define SPW_WGMMA_NAMES_8 SPW_WGMMA_NAMES_4 ", %4, %5, %6, %7"
#define SPW_WGMMA_NAMES_16 SPW_WGMMA_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SPW_WGMMA_NAMES_32 \
  SPW_WGMMA_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPW_WGMMA_NAMES_64                                                                  \
  SPW_WGMMA_NAMES_32                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SPW_WGMMA_SUMS_4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define SPW_WGMMA_SUMS_8(d, i)                                                        \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define SPW_WGMMA_SUMS_16(d, i) SPW_WGMMA_SUMS_8(d, i), SPW_WGMMA_SUMS_8(d, (i) + 8)
#define SPW_WGMMA_SUMS_32(d, i)                                                        \
  SPW_WGMMA_SUMS_8(d, i), SPW_WGMMA_SUMS_8(d, (i) + 8), SPW_WGMMA_SUMS_8(d, (i) + 16), \
      SPW_WGMMA_SUMS_8(d, (i) + 24)
#define SPW_WGMMA_SUMS_64(d) SPW_WGMMA_SUMS_32(d, 0), SPW_WGMMA_SUMS_32(d, 32)

// d = a * b, or d += a * b with `add`. a is 64 x 16 and b 128 x 16, both with rows along the summed
// dimension.
__device__ __forceinline__ void wgmma_rows(float (&d)[64], uint64_t a, uint64_t b, bool add) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SPW_WGMMA_NAMES_64
      "}, %64, %65, p, 1, 1, 0, 0;\n"
      "}\n"
      : SPW_WGMMA_SUMS_64(d)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
#else
  (void)d, (void)a, (void)b, (void)add;
#endif
}

// d += a * b. a is 64 x 16 in registers, as in mma.m16n8k16; b is 16 x 2 n, with rows along its
// columns.
__device__ __forceinline__ void wgmma_columns(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SPW_WGMMA_NAMES_32
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n"
      "}\n"
      : SPW_WGMMA_SUMS_32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
  (void)d, (void)a, (void)b;
#endif
}
__device__ __forceinline__ void wgmma_columns(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SPW_WGMMA_NAMES_64
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n"
      "}\n"
      : SPW_WGMMA_SUMS_64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
  (void)d, (void)a, (void)b;
#endif
}

// d += a * b. a is 64 x 16 in registers, as in mma.m16n8k16; b is 2 n x 16, with rows along the
// summed dimension.
__device__ __forceinline__ void wgmma_registers(float (&d)[4], const uint32_t (&a)[4], uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {" SPW_WGMMA_NAMES_4
               "}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;\n"
               : SPW_WGMMA_SUMS_4(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
  (void)d, (void)a, (void)b;
#endif
}
__device__ __forceinline__ void wgmma_registers(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {" SPW_WGMMA_NAMES_8
               "}, {%8, %9, %10, %11}, %12, 1, 1, 1, 0;\n"
               : SPW_WGMMA_SUMS_8(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
  (void)d, (void)a, (void)b;
#endif
}
__device__ __forceinline__ void wgmma_registers(float (&d)[16], const uint32_t (&a)[4],
                                                uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" SPW_WGMMA_NAMES_16
               "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;\n"
               : SPW_WGMMA_SUMS_16(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
  (void)d, (void)a, (void)b;
#endif
}
__device__ __forceinline__ void wgmma_registers(float (&d)[32], const uint32_t (&a)[4],
                                                uint64_t b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" SPW_WGMMA_NAMES_32
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;\n"
               : SPW_WGMMA_SUMS_32(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#else
  (void)d, (void)a, (void)b;
#endif
}

#undef SPW_WGMMA_NAMES_4
#undef SPW_WGMMA_NAMES_8
#undef SPW_WGMMA_NAMES_16
#undef SPW_WGMMA_NAMES_32
#undef SPW_WGMMA_NAMES_64
#undef SPW_WGMMA_SUMS_4
#undef SPW_WGMMA_SUMS_8
#undef SPW_WGMMA_SUMS_16
#undef SPW_WGMMA_SUMS_32
#undef SPW_WGMMA_SUMS_64

}  // namespace spillway::cuda
