// SPDX-License-Identifier: Apache-2.0
// What rows have seen of their sequences so far (device/attention_parts.h): beginning, adding up,
// and the result. All of it passes over memory once.
#pragma once

#include <cuda_runtime_api.h>

#include "device/attention_parts.h"

namespace spillway::cuda {

void clear_sums(const AttentionSums& sums, cudaStream_t stream);
// As clear_sums(), but for the outputs: what they are is not looked at then.
void mark_unseen(const AttentionSums& sums, cudaStream_t stream);
// `seen` may be pinned host memory.
void add_sums(const AttentionSums& seen, const AttentionSums& sums, cudaStream_t stream);
// out: F16, BF16 or F32.
void finish_sums(const AttentionSums& sums, const Activations& out, cudaStream_t stream);

}  // namespace spillway::cuda
