// SPDX-License-Identifier: Apache-2.0
// Decode attention: few rows per sequence, each over all of its context.
//
// A row is split at positions that are multiples of 256, of 512 or 1024 where it sees more than 512
// or 4096 tokens that are quantized or, in a step with rows enough (AttentionCall::together), that
// query heads share; a block computes one part for up to 8 query heads that share a kv head, and a
// small launch behind merges the parts in a fixed order. So a row's result depends neither on who
// else is in the call nor on where pages lie. Lengths are read on the GPU: a captured launch serves
// all steps whose contexts fit into max_parts.
//
// With a unified maximum (FlashDecoding++, section 3) parts are sums of exp(score - phi) that just
// add up; 32 tokens (of int4, 64) whose largest score is outside the range take that instead, and
// the merge takes maxima into account. Without, a warp's share of the part has its own maximum
// (FlashDecoding).
//
// The batch's arrays, and KV at positions before a sequence's `start`, are read before the kernel
// in front has ended: they must come from copies, or from launches before those of the step.
//
// F16, int8 and int4 KV with F16 or BF16 queries and head dims 64, 80, 96, 128, 256 (int4:
// 64, 128, 256) go through tensor cores from Ampere on; everything else
// through F32 arithmetic on CUDA cores.
#pragma once

#include "cuda/attention/attention_call.h"

namespace spillway::cuda {

// How many parts rows have at most that end at position `context` or before.
int attention_parts(int64_t context, int window);

// `to_sums`: of a call with AttentionCall::sums.
size_t attention_decode_scratch_bytes(int rows, int heads, int kv_heads, int head_dim,
                                      int max_parts, bool to_sums = false);

// `max_rows`: no sequence has more rows in this step; `max_parts`: no row has more parts. Larger
// than need be is right, and costs blocks that end at once. The scratch may be shared by launches
// of one stream, of any shape.
void attention_decode(const AttentionCall& call, const UnifiedMax& unified, int max_rows,
                      int max_parts, const AttentionScratch& scratch, cudaStream_t stream);

// The same rows in F32 on CUDA cores, each by blocks that go over its whole context: needs no
// scratch, and is as accurate as F32 gets. For prefill of F32 models.
void attention_rows(const AttentionCall& call, int max_rows, cudaStream_t stream);

}  // namespace spillway::cuda
