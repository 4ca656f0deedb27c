// SPDX-License-Identifier: Apache-2.0
// attention_prefill()'s kernel for Hopper.
#pragma once

#include "cuda/attention/attention_call.h"

namespace spillway::cuda {

struct PrefillArgs;

// How it works.
struct PrefillVariant {
  bool persistent = true;   // blocks go on with what is left; else one for each tile of rows
  bool chained = true;      // the end of one tile of rows overlaps the start of the next
  bool sections = true;     // so many heads at once as L2 can hold; else all
  bool other_rows = false;  // heads of 64: the other of blocks of 128 and of 192 rows
};

// `counters`: two zeros, left as zeros; null: blocks do not share what is left. False: not for this
// call, or not on this GPU.
bool try_attention_wgmma(const AttentionCall& call, const PrefillArgs& a, const UnifiedMax& unified,
                         int max_rows, int32_t* counters, const PrefillVariant& variant,
                         cudaStream_t stream);

}  // namespace spillway::cuda
