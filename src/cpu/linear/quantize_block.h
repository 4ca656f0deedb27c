// SPDX-License-Identifier: Apache-2.0
// One block of activations as 8-bit integers (quantize_activations.h). Objects that are compiled
// for one instruction set include this file, so it has plain types only, no code.
#pragma once

#include <cstdint>

namespace spillway {

struct QuantizedBlock {
  float d;         // NaN or infinite if a value is; then all of q is zero
  int32_t sum[2];  // of q, each 16 columns
};

// Quantizes 32 values to four pieces of eight bytes, 16 bytes apart.
using QuantizeBlock = QuantizedBlock (*)(const float* x, int8_t* q);

inline constexpr float kLeastPeak = 0x1p-100F;  // below it a block counts as zero

#if defined(__x86_64__)
QuantizedBlock quantize_block_avx2(const float* x, int8_t* q);
#endif

}  // namespace spillway
