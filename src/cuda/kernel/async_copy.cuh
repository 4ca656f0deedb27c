// SPDX-License-Identifier: Apache-2.0
// Hopper's asynchronous (tensor) copies and the barriers in shared memory that they complete on.
// Device code for sm_90 and later; on older GPUs the functions do not exist.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "cuda/kernel/read_once.cuh"
#include "cuda/kernel/shared_address.cuh"

namespace spillway::cuda {

#if __CUDA_ARCH__ >= 900

// A phase completes when `arrivals` threads have arrived and the announced bytes have been copied.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Called by the thread that initialized all barriers, after that; a __syncthreads() must follow.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Waits for the end of the phase with this parity; the first phase has parity 0.
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}
// Returns whether that phase is over, without waiting for it.
__device__ __forceinline__ bool try_barrier(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// Copies `bytes` that are read only once. Both addresses are 16-byte aligned, and `bytes` is a
// multiple of 16.
__device__ __forceinline__ void copy_once(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(read_once())
      : "memory");
}
// Copies one box of the map, from this column and row, to `to`. Its bytes count for the barrier.
template <bool kOnce = false>
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& map, int column, int row,
                                         uint32_t barrier) {
  if constexpr (kOnce) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(read_once())
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

#endif

}  // namespace spillway::cuda
