// SPDX-License-Identifier: Apache-2.0
// Makes random weights: valid stored data of any type, written at about the speed of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace spillway {

// A random pattern of about 1 MiB, repeated at shifting offsets: good enough for benchmarks, but no
// real noise. Values have a mean of about 0 and a standard deviation of about `deviation`. The same
// (type, seed, deviation) gives the same bytes on every machine. Immutable, so thread-safe.
class RandomPattern {
 public:
  RandomPattern(DType type, uint64_t seed, float deviation);

  // Fills `count` stored elements (whole blocks). `shift` moves the start within the pattern, so
  // that weights differ.
  void fill(std::byte* out, int64_t count, uint64_t shift = 0) const;

 private:
  DType type_;
  int64_t blocks_;
  std::vector<std::byte> bytes_;
};

// Fills once, for callers that do not need the pattern again.
void fill_random(DType type, std::byte* out, int64_t count, uint64_t seed, float deviation);

}  // namespace spillway
