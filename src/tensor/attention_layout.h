// SPDX-License-Identifier: Apache-2.0
// Sizes of attention over KV partitions: where a sequence may be split, and how large the softmax
// state of a partition is.
#pragma once

#include <cstdint>

#include "tensor/kv_format.h"

namespace spillway {

// A sequence is split into partitions only at positions that are multiples of this, because kernels
// split there anyway.
inline constexpr int32_t kPartitionTokens = 256;
inline constexpr int32_t kPartitionBlocks = kPartitionTokens / kKvBlockTokens;

// Returns the floats of a row of softmax state: an output vector, a maximum and a sum for each
// head. Rounded up to a multiple of four, because four floats are read at a time.
constexpr int64_t softmax_state_columns(int64_t heads, int64_t head_dim) {
  return (heads * (head_dim + 2) + 3) / 4 * 4;
}

}  // namespace spillway
