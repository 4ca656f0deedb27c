// SPDX-License-Identifier: Apache-2.0
// attention_prefill()'s kernel for Hopper.
#pragma once

#include "cuda/attention_call.h"

namespace spillway::cuda {

struct PrefillArgs;

// False: not for this call, or not on this GPU.
bool try_attention_wgmma(const AttentionCall& call, const PrefillArgs& a, int max_rows,
                         cudaStream_t stream);

}  // namespace spillway::cuda
