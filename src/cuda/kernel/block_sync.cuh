// SPDX-License-Identifier: Apache-2.0
// A barrier for the first threads of a thread block, whatever the other threads do. Where these are
// all threads, it does the same as __syncthreads().
#pragma once

namespace spillway::cuda {

template <int kThreads>
__device__ __forceinline__ void sync_first() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

}  // namespace spillway::cuda
