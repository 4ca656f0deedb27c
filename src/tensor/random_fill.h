// SPDX-License-Identifier: Apache-2.0
// Weights nobody trained: valid stored data of any type, written at about the speed of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// Fills `count` stored elements (whole blocks) with values of mean about 0 and standard deviation
// about `deviation`. The same (type, seed, deviation) gives the same bytes, whatever the machine.
// One random pattern of about 1 MiB is made and laid out again and again at shifting offsets:
// enough for benchmarks, useless as noise.
void fill_random(DType type, std::byte* out, int64_t count, uint64_t seed, float deviation);

}  // namespace spillway
