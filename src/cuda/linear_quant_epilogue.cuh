// SPDX-License-Identifier: Apache-2.0
// What happens to the sums of quantized linear layers: bias, activation, gate, store.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/linear_quant_args.h"

namespace spillway::cuda {

__device__ __forceinline__ float quant_activation(ActivationKind kind, float v) {
  switch (kind) {
    case ActivationKind::kRelu:
      return fmaxf(v, 0.0F);
    case ActivationKind::kGelu:
      return 0.5F * v * (1.0F + erff(v * 0.70710678118654752F));
    case ActivationKind::kGeluTanh:
      return 0.5F * v * (1.0F + tanhf(0.79788456080286536F * (v + 0.044715F * v * v * v)));
    case ActivationKind::kSilu:
      return v / (1.0F + __expf(-v));
  }
  return v;
}

// `sum` of output `row` of part `p`; of gated calls `up` is that of the second part.
__device__ __forceinline__ void finish_output(const QuantArgs& a, int p, int row, int token,
                                              float sum, float up) {
  const QuantPart& part = a.parts[p];
  if (part.bias != nullptr) sum += __ldg(part.bias + row);
  if (a.epilogue == Epilogue::kActivate) {
    sum = quant_activation(a.activation, sum);
  } else if (a.epilogue == Epilogue::kGated) {
    if (a.parts[1].bias != nullptr) up += __ldg(a.parts[1].bias + row);
    sum = quant_activation(a.activation, sum) * up;
  }
  const int64_t at = token * a.out_stride + row;
  if (a.out_dtype == DType::kF32) {
    float* out = static_cast<float*>(part.out) + at;
    // Added where it lies, in L2: one addition per output, but nobody waits for what was there.
    if (a.epilogue == Epilogue::kAccumulate) {
      atomicAdd(out, sum);
    } else {
      *out = sum;
    }
  } else if (a.out_dtype == DType::kF16) {
    static_cast<__half*>(part.out)[at] = __float2half_rn(fminf(fmaxf(sum, -65504.0F), 65504.0F));
  } else {
    static_cast<__nv_bfloat16*>(part.out)[at] = __float2bfloat16_rn(sum);
  }
}

}  // namespace spillway::cuda
