// SPDX-License-Identifier: Apache-2.0
// The next token from its logits, or what they say of one, on the GPU: only that leaves it.
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

// ids[i] = the token drawn from row i of `logits` [rows, vocab] F32, which is changed by the row's
// adjustments; -1 where a logit is NaN or infinity, or all are minus infinity. `rows`,
// `adjustments` (of all rows, aligned to 16 bytes; null: none has any) and `ids` are read and
// written once: device or pinned memory.
void sample(const Activations& logits, const SampleRowArgs* rows,
            const LogitAdjustment* adjustments, int32_t* ids, cudaStream_t stream);

// scores[i] = what row i of `logits` says of token ids[i] (Ops::score()). Both are read and written
// once: device or pinned memory.
void score(const Activations& logits, const int32_t* ids, TokenScore* scores, cudaStream_t stream);

}  // namespace spillway::cuda
