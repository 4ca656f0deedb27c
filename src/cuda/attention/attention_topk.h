// SPDX-License-Identifier: Apache-2.0
// Decode attention to the keys with the largest scores only (FlexGen, section 5;
// device/sparse_attention.h).
//
// One launch scores all keys; a second one finds, for each row and head, the smallest score that is
// attended to, and reads V of the selected positions only. F32 on CUDA cores, any KV type and query
// type. Positions are added up in an order that follows from their places: a row's result depends
// neither on the batch nor on where pages lie. Lengths are read on the GPU: a captured launch
// serves all steps whose contexts fit into max_partitions.
#pragma once

#include "cuda/attention/attention_call.h"

namespace spillway::cuda {

// Returns the bytes for scores of `rows` rows whose contexts have at most `max_partitions`
// partitions of 256 tokens.
size_t attention_topk_scratch_bytes(int rows, int heads, int max_partitions);

// Requires that every sequence of the batch has one row in this step. The scratch need not be
// cleared, and may be shared by launches of one stream.
void attention_topk(const AttentionCall& call, int max_partitions, std::byte* scratch,
                    size_t scratch_bytes, cudaStream_t stream);

}  // namespace spillway::cuda
