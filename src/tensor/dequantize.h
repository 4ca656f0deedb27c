// SPDX-License-Identifier: Apache-2.0
// The reference meaning of every stored type: scalar, bit-exact, and what all kernels are tested
// against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// Writes `count` floats from `count` stored elements; `count` is a whole number of blocks.
void dequantize_reference(DType type, const std::byte* stored, float* out, int64_t count);

// Stores `count` floats as `type`, rounding to nearest; supported for F32, F16, BF16, Q4_0, Q4_1,
// Q5_0, Q5_1, Q8_0 (throws kUnsupported for others). For tests and generators: simple, not the best
// possible quantization.
void quantize_reference(DType type, const float* values, std::byte* out, int64_t count);

}  // namespace spillway
