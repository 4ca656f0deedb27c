// SPDX-License-Identifier: Apache-2.0
// Prefill attention: many rows per sequence, tile by tile on tensor cores.
//
// All sequences of a step in one launch, chunks of any size at any position, causal over paged KV
// with an online softmax (FlashAttention-2). F16 and BF16 queries over F16, int8 and int4 KV go
// through tensor cores; F32 queries or KV through F32 arithmetic on CUDA cores (attention_rows()).
// A row's result depends, by rounding, on where its chunk starts and ends, on Hopper with a unified
// maximum on the rows that share its tile, and with heads of 64 on how many rows the step has;
// otherwise not on the batch. Who wants it not to takes attention_decode().
#pragma once

#include "cuda/attention/attention_call.h"
#include "cuda/attention/attention_prefill_wgmma.h"

namespace spillway::cuda {

size_t attention_prefill_scratch_bytes();

// `max_rows`: no sequence has more rows in this step; larger than need be is right. The scratch is
// zeroed once, and may be shared by launches of one stream; without it blocks share their work less
// well. With a unified maximum, on Hopper, exponents are relative to it as long as all of a row can
// be told by them.
void attention_prefill(const AttentionCall& call, const UnifiedMax& unified, int max_rows,
                       const AttentionScratch& scratch, cudaStream_t stream,
                       const PrefillVariant& variant = {});

}  // namespace spillway::cuda
