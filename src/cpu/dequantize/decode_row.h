// SPDX-License-Identifier: Apache-2.0
// Decodes stored elements to floats with the host's vector instructions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// Writes `count` floats from `count` stored elements (whole blocks), at any byte alignment.
// Bit-equal to dequantize_reference.
void decode_row(DType type, const std::byte* stored, float* out, int64_t count);

// Like decode_row, but adds to out.
void decode_row_add(DType type, const std::byte* stored, float* out, int64_t count);

}  // namespace spillway
