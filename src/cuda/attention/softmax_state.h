// SPDX-License-Identifier: Apache-2.0
// Softmax states of rows over the KV that they have seen so far (device/partitioned_attention.h):
// clearing, merging, and the final result. Each function passes over the memory once.
#pragma once

#include <cuda_runtime_api.h>

#include "device/partitioned_attention.h"

namespace spillway::cuda {

void clear_state(const SoftmaxState& sums, cudaStream_t stream);
// Like clear_state(), but leaves the outputs as they are: merge_state() does not read them from a
// `seen` whose sum is 0.
void mark_unseen(const SoftmaxState& sums, cudaStream_t stream);
// `seen` may be pinned host memory.
void merge_state(const SoftmaxState& seen, const SoftmaxState& sums, cudaStream_t stream);
// `out` is F16, BF16 or F32.
void finish_state(const SoftmaxState& sums, const Activations& out, cudaStream_t stream);

}  // namespace spillway::cuda
