// SPDX-License-Identifier: Apache-2.0
// Prefill attention: many rows per sequence, tile by tile on tensor cores.
//
// One launch computes all sequences of a step, with chunks of any size at any position, causal over
// paged KV with an online softmax (FlashAttention-2). F16 and BF16 queries over F16, BF16 (from
// Ampere on), int8 and int4 KV use tensor cores; F32 queries or KV use F32 arithmetic on CUDA cores
// (attention_rows()). A row's result depends, by rounding, on where its chunk starts and ends; on
// Hopper with a unified maximum also on the rows that share its tile, and with heads of 64 on the
// number of rows in the step. It does not depend on the rest of the batch. Callers that need
// results without these dependences use attention_decode().
#pragma once

#include "cuda/attention/attention_call.h"
#include "cuda/attention/attention_prefill_wgmma.h"

namespace spillway::cuda {

size_t attention_prefill_scratch_bytes();

// `max_rows`: no sequence has more rows in this step; a larger number is correct too. The scratch
// is zeroed once, and may be shared by launches of one stream; without it thread blocks balance
// their work less well. With a unified maximum, on Hopper, a row's exponentials are relative to it
// as long as F16 can represent them.
void attention_prefill(const AttentionCall& call, const UnifiedMax& unified, int max_rows,
                       const AttentionScratch& scratch, cudaStream_t stream,
                       const PrefillVariant& variant = {});

}  // namespace spillway::cuda
