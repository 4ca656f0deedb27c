// SPDX-License-Identifier: Apache-2.0
// Plain weights to the types of GGUF files, at the least error that a search finds; for conversion,
// where time matters less than what the file is worth afterwards.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// Stores `count` floats (whole blocks) as `type`: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
// Q4_K, Q5_K or Q6_K; throws kUnsupported for others. False where
// a value is NaN or infinite or beyond what the type reaches; `out` is then of no use. Each block
// depends on its own values alone, so any split over threads gives the same bytes. Thread-safe.
[[nodiscard]] bool quantize_blocks(DType type, const float* values, std::byte* out, int64_t count);

}  // namespace spillway
