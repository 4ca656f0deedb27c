// SPDX-License-Identifier: Apache-2.0
// What logits on the GPU say of tokens (device/logprobs.h): only that leaves it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/ops.h"

namespace spillway::cuda {

// scores[i] = what row i of `logits` [rows, vocab] F32 says of token ids[i] (Ops::score()). Both
// are read and written once: device or pinned memory.
void score(const Activations& logits, const int32_t* ids, TokenScore* scores, cudaStream_t stream);

// A row that is asked for log-probabilities.
struct LogprobsRow {
  int32_t row;    // of the logits
  int32_t count;  // of the most likely tokens: kMostLogprobs and the vocabulary at most
  int32_t first;  // of these in `top`
};

// chosen[i] = the log-probability of token ids[rows[i].row], and in `top` those of the most likely
// tokens. Nothing is written for a row without a token (-1). All of it is read and written once:
// device or pinned memory.
void logprobs(const Activations& logits, int64_t count, const LogprobsRow* rows, const int32_t* ids,
              float* chosen, TokenLogprob* top, cudaStream_t stream);

}  // namespace spillway::cuda
