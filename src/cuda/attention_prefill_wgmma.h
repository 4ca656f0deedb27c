// SPDX-License-Identifier: Apache-2.0
// attention_prefill()'s kernel for Hopper.
#pragma once

#include "cuda/attention_call.h"

namespace spillway::cuda {

struct PrefillArgs;

// How it works.
struct PrefillVariant {
  bool ordered = true;      // warpgroups take turns at the tensor cores
  bool persistent = true;   // blocks go on with what is left; else one for each tile of rows
  bool chained = true;      // the end of one tile of rows overlaps the start of the next
  bool sections = true;     // so many heads at once as L2 can hold; else all
  int polynomials = 0;      // of 8 exponents so many by polynomials: 0, 1 or 2
  bool other_rows = false;  // heads of 64: the other of blocks of 128 and of 192 rows
};

// `counters`: two zeros, left as zeros; null: blocks do not share what is left. False: not for this
// call, or not on this GPU.
bool try_attention_wgmma(const AttentionCall& call, const PrefillArgs& a, const UnifiedMax& unified,
                         int max_rows, int32_t* counters, const PrefillVariant& variant,
                         cudaStream_t stream);

}  // namespace spillway::cuda
