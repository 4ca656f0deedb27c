// SPDX-License-Identifier: Apache-2.0
// Driver functions that the runtime library does not wrap. They are looked up at run time, so that
// a binary with CUDA also starts where there is no driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace spillway::cuda {

// Returns the CUDA 12 version of the function, or null where the driver does not have it.
void* find_driver_function(const char* name);

// Queues a store of `value` to pinned host memory, after all earlier work of the stream.
void stream_write(cudaStream_t stream, uint32_t* host, uint32_t value);
// Later work of the stream waits until `*host` is at least `value` (modulo 2^32).
void stream_wait(cudaStream_t stream, const uint32_t* host, uint32_t value);

}  // namespace spillway::cuda
