// SPDX-License-Identifier: Apache-2.0
// The Hopper kernel of attention_prefill().
#pragma once

#include "cuda/attention/attention_call.h"

namespace spillway::cuda {

struct PrefillArgs;

// Switches for the ways in which the kernel works, for tests.
struct PrefillVariant {
  bool persistent = true;   // thread blocks take further tiles of rows; else one for each
  bool chained = true;      // the end of one tile of rows overlaps the start of the next
  bool sections = true;     // a section has only as many heads as fit into L2; else all
  bool other_rows = false;  // heads of 64: thread blocks of 128 rows instead of 192, or the reverse
};

// `counters`: two zeros, which are zeros again afterwards; null: thread blocks take a fixed share
// of the work. Returns false if the kernel does not support this call or this GPU.
bool try_attention_wgmma(const AttentionCall& call, const PrefillArgs& a, const UnifiedMax& unified,
                         int max_rows, int32_t* counters, const PrefillVariant& variant,
                         cudaStream_t stream);

}  // namespace spillway::cuda
