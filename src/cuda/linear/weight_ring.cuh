// SPDX-License-Identifier: Apache-2.0
// A warp's own ring of buffers in shared memory through which weights stream: bulk copies that
// complete on a barrier (Hopper), cp.async (Ampere, Ada), plain loads (Turing).
//
// All lanes of one warp use it together. For each buffer they call begin(), copy() for each range,
// and end(); later wait(), then read, and release() before the buffer is filled again.
#pragma once

#include <cstdint>

#include "cuda/kernel/async_copy.cuh"
#include "cuda/kernel/shared_address.cuh"

namespace spillway::cuda {

class WeightRing {
 public:
  // `barriers`: `stages` 8-byte words that belong to this warp.
  __device__ __forceinline__ WeightRing(uint64_t* barriers, int stages, int lane)
      : barriers_(shared_address(barriers)), stages_(stages), lane_(lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
#pragma unroll 1
      for (int i = 0; i < stages; ++i) {
        init_barrier(barriers_ + 8 * i, 1);
      }
      publish_barriers();
    }
    __syncwarp();
#endif
  }

  // Announces how many bytes will be copied into buffer `stage`.
  __device__ __forceinline__ void begin(int stage, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) {
      arrive_and_expect(barriers_ + 8 * stage, bytes);
    }
#endif
  }
  // Both addresses are 16-byte aligned, and `bytes` is a multiple of 16.
  __device__ __forceinline__ void copy(int stage, uint8_t* to, const uint8_t* from,
                                       uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) {
      copy_once(shared_address(to), from, bytes, barriers_ + 8 * stage);
    }
#elif __CUDA_ARCH__ >= 800
    for (uint32_t i = lane_ * 16; i < bytes; i += 512) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + i)),
                   "l"(from + i)
                   : "memory");
    }
#else
    for (uint32_t i = lane_ * 16; i < bytes; i += 512) {
      *reinterpret_cast<uint4*>(to + i) = __ldg(reinterpret_cast<const uint4*>(from + i));
    }
#endif
  }
  // Must be called even if nothing was copied, as buffers are counted.
  __device__ __forceinline__ void end() {
#if __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 900
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }

  // Waits for the buffer that was filled longest ago; up to `stages` - 1 later ones may still be in
  // flight after it.
  __device__ __forceinline__ void wait(int stage, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra arrived;\n"
        "bra again;\n"
        "arrived:\n"
        "}\n" ::"r"(barriers_ + 8 * stage),
        "r"(parity)
        : "memory");
#elif __CUDA_ARCH__ >= 800
    switch (stages_) {
      case 1:
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        break;
      case 2:
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        break;
      case 3:
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        break;
      default:
        asm volatile("cp.async.wait_group 3;" ::: "memory");
    }
    __syncwarp();
#else
    __syncwarp();
#endif
  }
  // Frees the buffer that was read, so that it may be filled again.
  __device__ __forceinline__ void release() { __syncwarp(); }

 private:
  uint32_t barriers_;
  int stages_;
  int lane_;
};

}  // namespace spillway::cuda
