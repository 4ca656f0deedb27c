// SPDX-License-Identifier: Apache-2.0
// Measures how fast memory can be read, with several loops over a thread's part of a buffer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway {

struct ReadLoop {
  int streams;         // parts of the buffer that are read side by side
  int prefetch_bytes;  // how far ahead to prefetch; 0 = no prefetch
};

// Reads [data, data + bytes) once. `bytes` must be a multiple of 4096 x streams, and streams 1, 2,
// 4 or 8. Returns all data folded into one word, so that the compiler cannot omit a read.
uint64_t read_all(const std::byte* data, size_t bytes, ReadLoop loop);

// Returns the bytes per second of the best loop (its median of five runs) on this many threads (0:
// all), over 1 GiB, more than the caches hold, in memory allocated like a device's.
double best_read_bytes_per_s(int threads);

}  // namespace spillway
