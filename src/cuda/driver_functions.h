// SPDX-License-Identifier: Apache-2.0
// Functions of the driver that the runtime library does not wrap, found at run time: a binary with
// CUDA starts where there is no driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace spillway::cuda {

// As of CUDA 12; null where the driver does not have it.
void* find_driver_function(const char* name);

// The stream stores `value` in pinned host memory, after all that came before it.
void stream_write(cudaStream_t stream, uint32_t* host, uint32_t value);
// What the stream has from now on waits until `value` or more is there (modulo 2^32).
void stream_wait(cudaStream_t stream, const uint32_t* host, uint32_t value);

}  // namespace spillway::cuda
