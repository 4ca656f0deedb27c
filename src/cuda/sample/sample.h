// SPDX-License-Identifier: Apache-2.0
// The next token from its logits on the GPU: only that leaves it.
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

// A logit as it was before its adjustment.
struct ReplacedLogit {
  int32_t id;
  float logit;
};

// ids[i] = the token drawn from row i of `logits` [rows, vocab] F32; -1 where a logit is NaN or
// infinity, or all are minus infinity. `rows`, `adjustments` (of all rows, aligned to 16 bytes;
// null: none has any) and `ids` are read and written once: device or pinned memory. `replaced`
// [adjustments] is device memory with which the logits are afterwards as they were; null: those
// with adjustments are changed.
void sample(const Activations& logits, const SampleRowArgs* rows,
            const LogitAdjustment* adjustments, ReplacedLogit* replaced, int32_t* ids,
            cudaStream_t stream);

}  // namespace spillway::cuda
