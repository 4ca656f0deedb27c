// SPDX-License-Identifier: Apache-2.0
// Converts pointers to the addresses by which copies, barriers and matrix descriptors name shared
// memory.
#pragma once

#include <cstdint>

namespace spillway::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace spillway::cuda
