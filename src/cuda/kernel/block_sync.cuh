// SPDX-License-Identifier: Apache-2.0
// A barrier of the first threads of a block, whatever its others do. Where these are all of them it
// is __syncthreads().
#pragma once

namespace spillway::cuda {

template <int kThreads>
__device__ __forceinline__ void sync_first() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

}  // namespace spillway::cuda
