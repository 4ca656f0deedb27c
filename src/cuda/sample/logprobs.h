// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of tokens from logits on the GPU (device/logprobs.h): only the results leave
// the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/ops.h"

namespace spillway::cuda {

// Sets scores[i] to the score of token ids[i] in row i of `logits` [rows, vocab] F32
// (Ops::score()). ids and scores are read and written once, so they may be in device or pinned
// memory.
void score(const Activations& logits, const int32_t* ids, TokenScore* scores, cudaStream_t stream);

// A row whose log-probabilities are requested.
struct LogprobsRow {
  int32_t row;    // row of the logits
  int32_t count;  // number of most likely tokens: at most kMostLogprobs and the vocabulary's size
  int32_t first;  // index of the first of these in `top`
};

// Sets chosen[i] to the log-probability of token ids[rows[i].row], and `top` to those of the most
// likely tokens. Nothing is written for a row without a token (-1). All arrays are read and written
// once, so they may be in device or pinned memory.
void logprobs(const Activations& logits, int64_t count, const LogprobsRow* rows, const int32_t* ids,
              float* chosen, TokenLogprob* top, cudaStream_t stream);

}  // namespace spillway::cuda
