// SPDX-License-Identifier: Apache-2.0
// Softmax states of rows over the KV that they have seen so far (device/attention_parts.h):
// clearing, merging, and the final result. Each function passes over the memory once.
#pragma once

#include <cuda_runtime_api.h>

#include "device/attention_parts.h"

namespace spillway::cuda {

void clear_sums(const AttentionSums& sums, cudaStream_t stream);
// Like clear_sums(), but leaves the outputs as they are: add_sums() does not read them from a
// `seen` whose sum is 0.
void mark_unseen(const AttentionSums& sums, cudaStream_t stream);
// `seen` may be pinned host memory.
void add_sums(const AttentionSums& seen, const AttentionSums& sums, cudaStream_t stream);
// `out` is F16, BF16 or F32.
void finish_sums(const AttentionSums& sums, const Activations& out, cudaStream_t stream);

}  // namespace spillway::cuda
