// SPDX-License-Identifier: Apache-2.0
// Converts plain weights to the types of GGUF files, with the least error that a search finds. It
// is meant for conversion, where quality matters more than time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// Stores `count` floats (whole blocks) as `type`: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
// Q4_K, Q5_K or Q6_K; throws kUnsupported for others. Returns false if a value is NaN, infinite or
// out of the type's range; `out` is then unusable. Each block depends only on its own values, so
// any split over threads gives the same bytes. Thread-safe.
[[nodiscard]] bool quantize_blocks(DType type, const float* values, std::byte* out, int64_t count);

}  // namespace spillway
