// SPDX-License-Identifier: Apache-2.0
// Linear layers over quantized weights for few tokens: weights are decoded in registers and never
// expanded in memory.
//
// These kernels are the flat GEMM of FlashDecoding++ (section 4: tokens padded to 8, weights
// streamed through a ring of buffers) on the packed layout that the CPU's kernels read
// (tensor/packed_layout.h). K is always cut into the same eight slices, whose sums are added in
// order: with `same_bits` a row's result is bit-equal whatever the number of tokens; it never
// depends on the slice of the matrix or the shape of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernel_args.h"
#include "cuda/linear/linear_quant_tuning.h"

namespace spillway::cuda {

// call.x is F16; weights have one quantized type, packed or as in the file; outputs are F32, F16
// (saturating) or BF16. Packed weights are 16-byte aligned. More than kQuantLinearTokens tokens
// take several passes over the weights. Throws kDevice if a launch is refused.
void quant_linear(const LinearCall& call, cudaStream_t stream,
                  const QuantLinearTuning& tuning = {});

}  // namespace spillway::cuda
