// SPDX-License-Identifier: Apache-2.0
// How fast memory can be read: a thread's part of a buffer, by one loop or another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway {

struct ReadLoop {
  int streams;         // parts of the buffer read side by side
  int prefetch_bytes;  // how far ahead to ask for memory; 0 = not at all
};

// Reads [data, data + bytes) once. `bytes` is a multiple of 4096 x streams, streams are 1, 2, 4 or
// 8. Returns what was read, folded into one word, so that nothing can be left out.
uint64_t read_all(const std::byte* data, size_t bytes, ReadLoop loop);

// Bytes per second of the best of all loops on so many threads (0: all), its median of five, over
// 1 GiB, more than caches hold, of memory as a device has it.
double best_read_bytes_per_s(int threads);

}  // namespace spillway
