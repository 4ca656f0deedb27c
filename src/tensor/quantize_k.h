// SPDX-License-Identifier: Apache-2.0
// Quantizes blocks of 256 values in which the scales of sub-blocks are quantized as well.
#pragma once

#include "tensor/quant_blocks.h"

namespace spillway {

// `values` are 256 finite numbers. Returns false if a scale is beyond F16's range. Thread-safe.
[[nodiscard]] bool quantize_block(const float* values, BlockQ4_K& block);
[[nodiscard]] bool quantize_block(const float* values, BlockQ5_K& block);
[[nodiscard]] bool quantize_block(const float* values, BlockQ6_K& block);

}  // namespace spillway
