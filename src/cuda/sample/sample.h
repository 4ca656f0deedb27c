// SPDX-License-Identifier: Apache-2.0
// Samples the next token from its logits on the GPU: only the token leaves the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/ops.h"

namespace spillway::cuda {

// SampleRow (device/ops.h) as the kernel reads it.
struct SampleRowArgs {
  float temperature;
  float top_p;
  float min_p;
  int32_t top_k;
  double uniform;
  int32_t first_adjustment;
  int32_t adjustments;
};
static_assert(sizeof(SampleRowArgs) % 16 == 0, "adjustments lie behind, aligned to 16 bytes");

// The value of a logit before its adjustment.
struct ReplacedLogit {
  int32_t id;
  float logit;
};

// Sets ids[i] to the token sampled from row i of `logits` [rows, vocab] F32; -1 if a logit is NaN
// or infinity, or all are minus infinity. `rows`, `adjustments` (of all rows, aligned to 16 bytes;
// null: no row has any) and `ids` are read and written once: device or pinned memory. With
// `replaced` [adjustments], which is device memory, the logits are restored afterwards; if it is
// null, adjusted logits stay changed.
void sample(const Activations& logits, const SampleRowArgs* rows,
            const LogitAdjustment* adjustments, ReplacedLogit* replaced, int32_t* ids,
            cudaStream_t stream);

}  // namespace spillway::cuda
