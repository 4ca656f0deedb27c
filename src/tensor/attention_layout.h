// SPDX-License-Identifier: Apache-2.0
// Attention to a sequence in parts: where it may be cut, and what is kept of the parts before.
#pragma once

#include <cstdint>

#include "tensor/kv_format.h"

namespace spillway {

// Sequences are cut at positions that are multiples of this, and nowhere else: where kernels cut
// them anyway.
inline constexpr int32_t kAttentionPartTokens = 256;
inline constexpr int32_t kAttentionPartBlocks = kAttentionPartTokens / kKvBlockTokens;

// Floats of a row of sums: of each head an output, a maximum and a sum. A multiple of four: rows
// begin where four floats are read at once.
constexpr int64_t attention_sum_columns(int64_t heads, int64_t head_dim) {
  return (heads * (head_dim + 2) + 3) / 4 * 4;
}

}  // namespace spillway
