// SPDX-License-Identifier: Apache-2.0
// What happens to the sums of quantized linear layers: bias, activation, gate, store.
#pragma once

#include "cuda/kernel/values.cuh"
#include "cuda/linear/linear_quant_args.h"

namespace spillway::cuda {

// `sum` of output `row` of part `p`; of gated calls `up` is that of the second part.
__device__ __forceinline__ void finish_output(const QuantArgs& a, int p, int row, int token,
                                              float sum, float up) {
  const QuantPart& part = a.parts[p];
  if (part.bias != nullptr) sum += __ldg(part.bias + row);
  if (a.epilogue == Epilogue::kActivate) {
    sum = activated(a.activation, sum);
  } else if (a.epilogue == Epilogue::kGated) {
    if (a.parts[1].bias != nullptr) up += __ldg(a.parts[1].bias + row);
    sum = activated(a.activation, sum) * up;
  }
  const int64_t at = token * a.out_stride + row;
  auto* const out = static_cast<std::byte*>(part.out);
  if (a.epilogue == Epilogue::kAccumulate) {
    // Added where it lies, in L2: one addition per output, but nobody waits for what was there.
    atomicAdd(reinterpret_cast<float*>(out) + at, sum);
  } else {
    store_as(a.out_dtype, out, at, sum);
  }
}

}  // namespace spillway::cuda
