// SPDX-License-Identifier: Apache-2.0
// Prefill attention: many rows per sequence, tile by tile on tensor cores.
//
// All sequences of a step in one launch, chunks of any size at any position, causal over paged KV
// with an online softmax (FlashAttention-2). F16 and BF16 queries over F16, int8 and int4 KV go
// through tensor cores; F32 queries or KV through F32 arithmetic on CUDA cores (attention_rows()).
// A row's result does not depend on the batch; it does depend on where its chunk starts, by
// rounding.
#pragma once

#include "cuda/attention_call.h"

namespace spillway::cuda {

// `max_rows`: no sequence has more rows in this step; larger than need be is right.
void attention_prefill(const AttentionCall& call, int max_rows, cudaStream_t stream);

}  // namespace spillway::cuda
