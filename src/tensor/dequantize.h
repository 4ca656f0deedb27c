// SPDX-License-Identifier: Apache-2.0
// Defines what every stored type means: scalar, bit-exact code against which all kernels are
// tested.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// Writes `count` floats from `count` stored elements; `count` is a whole number of blocks.
void dequantize_reference(DType type, const std::byte* stored, float* out, int64_t count);

// Stores `count` floats as `type`, rounding to nearest. Supports F32, F16, BF16, Q4_0, Q4_1, Q5_0,
// Q5_1 and Q8_0 and throws kUnsupported for others. For tests and generators: simple, but not the
// best possible quantization.
void quantize_reference(DType type, const float* values, std::byte* out, int64_t count);

}  // namespace spillway
