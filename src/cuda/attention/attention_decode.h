// SPDX-License-Identifier: Apache-2.0
// Decode attention: few rows per sequence, each over its whole context.
//
// A row's KV is split into partitions at positions that are multiples of 256; or of 512 or 1024
// where the row sees more than 512 or 4096 tokens and the KV is quantized or, in a step with enough
// rows (AttentionCall::together), shared by query heads. A thread block computes one partition for
// up to 8 query heads that share a kv head, and a small second launch merges the partitions in a
// fixed order. So a row's result depends neither on the other rows in the call nor on where pages
// lie. Lengths are read on the GPU: a captured launch serves all steps whose contexts fit into
// max_partitions.
//
// With a unified maximum (FlashDecoding++, section 3) partitions are sums of exp(score - phi) that
// are just added; 32 tokens (64 of int4) whose largest score is outside the range use that score
// instead, and the merge takes maxima into account. Without one, each warp's share of a partition
// has its own maximum (FlashDecoding).
//
// The batch's arrays, and KV at positions before a sequence's `start`, are read before the previous
// kernel has ended: they must come from copies, or from launches before those of this step.
//
// F16, BF16, int8 and int4 KV with F16 or BF16 queries and head dims 64, 80, 96, 128, 256 (int4:
// 64, 128, 256) is computed on tensor cores from Ampere on; everything else in F32 on CUDA cores.
#pragma once

#include "cuda/attention/attention_call.h"

namespace spillway::cuda {

// Returns how many partitions a row has at most that ends at position `context` or before.
int attention_partitions(int64_t context, int window);

// `to_sums`: for a call with AttentionCall::sums.
size_t attention_decode_scratch_bytes(int rows, int heads, int kv_heads, int head_dim,
                                      int max_partitions, bool to_sums = false);

// `max_rows`: no sequence has more rows in this step; `max_partitions`: no row has more partitions.
// Larger numbers are correct too, and cost thread blocks that end immediately. The scratch may be
// shared by launches of one stream, of any shape.
void attention_decode(const AttentionCall& call, const UnifiedMax& unified, int max_rows,
                      int max_partitions, const AttentionScratch& scratch, cudaStream_t stream);

// Computes the same rows in F32 on CUDA cores, each by thread blocks that go over its whole
// context: needs no scratch, and is as accurate as F32 gets. Used for prefill of F32 models.
void attention_rows(const AttentionCall& call, int max_rows, cudaStream_t stream);

}  // namespace spillway::cuda
