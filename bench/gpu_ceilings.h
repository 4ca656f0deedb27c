// SPDX-License-Identifier: Apache-2.0
// Measures what a GPU can do at most, in the process that compares itself with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace spillway::bench {

// Returns the bytes per second at which all multiprocessors together read memory that is in no
// cache: the best of several loops over `bytes` (0: 2 GiB, or half of the free memory). Takes about
// 50 ms.
double hbm_read_bytes_per_s(size_t bytes = 0);

// Returns the FLOP per second of a large bf16 matrix product by cuBLASLt (8192^3, random data, the
// fastest of its proposals); 0 if the library cannot be loaded. Takes about 150 ms.
double bf16_gemm_flop_per_s();

// Fills with random normal values of standard deviation `deviation`, in F16 (bf16 = false) or BF16.
void fill_random16(void* data, size_t count, bool bf16, uint32_t seed, float deviation,
                   cudaStream_t stream);

}  // namespace spillway::bench
