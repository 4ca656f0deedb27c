// SPDX-License-Identifier: Apache-2.0
// Numbers on their way into KV pages that these cannot hold: NaN takes their place (KvStored), and
// the host is told.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/kv_fault.h"
#include "tensor/dtype.h"

namespace spillway::cuda {

struct KvFaults {
  uint32_t* word = nullptr;  // a KvFault's, in pinned memory; null: nobody asks
  int layer = 0;

  // The first stays. Over the bus, but hardly ever.
  __device__ __forceinline__ void report(KvPart part, bool in_activations) const {
    if (word != nullptr) atomicCAS(word, 0U, KvFault{layer, part, in_activations}.word());
  }
};

// An element that was computed in F16 and had to saturate is no number; queries are nobody's fault.
__device__ __forceinline__ bool is_saturated(DType type, float x) {
  return type == DType::kF16 && fabsf(x) >= 65504.0F;
}
__device__ __forceinline__ float unless_saturated(DType type, float x) {
  return is_saturated(type, x) ? __uint_as_float(kKvNanFloat) : x;
}
__device__ __forceinline__ float unless_saturated(DType type, float x, KvPart part,
                                                  const KvFaults& faults) {
  if (!is_saturated(type, x)) return x;
  if (fabsf(x) < INFINITY) faults.report(part, true);
  return __uint_as_float(kKvNanFloat);
}

// As store_kv_reference() stores it.
__device__ __forceinline__ __half half_in_page(float x, KvPart part, const KvFaults& faults) {
  if (fabsf(x) < kKvHalfEnd) return __float2half_rn(x);
  if (fabsf(x) < INFINITY) faults.report(part, false);
  return __ushort_as_half(kKvNanHalf);
}
__device__ __forceinline__ __nv_bfloat16 bf16_in_page(float x, KvPart part,
                                                      const KvFaults& faults) {
  if (fabsf(x) < kKvBf16End) return __float2bfloat16_rn(x);
  if (fabsf(x) < INFINITY) faults.report(part, false);
  return __ushort_as_bfloat16(kKvNanBf16);
}

}  // namespace spillway::cuda
