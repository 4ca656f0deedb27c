// SPDX-License-Identifier: Apache-2.0
// Blocks of 256 values in which the scales of sub-blocks are quantized as well.
#pragma once

#include "tensor/quant_blocks.h"

namespace spillway {

// `values` are 256 finite numbers. False where their scale is beyond F16's range. Thread-safe.
[[nodiscard]] bool quantize_block(const float* values, BlockQ4_K& block);
[[nodiscard]] bool quantize_block(const float* values, BlockQ5_K& block);
[[nodiscard]] bool quantize_block(const float* values, BlockQ6_K& block);

}  // namespace spillway
