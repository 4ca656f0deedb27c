// SPDX-License-Identifier: Apache-2.0
// Stores numbers into KV pages: those that a page cannot hold become NaN (KvStored) and are
// reported to the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/kv_fault.h"
#include "tensor/dtype.h"

namespace spillway::cuda {

struct KvFaults {
  uint32_t* word = nullptr;  // a KvFault's word in pinned memory; null: faults are not reported
  int layer = 0;

  // Keeps the first fault. The write crosses the bus, but is rare.
  __device__ __forceinline__ void report(KvPart part, bool in_activations) const {
    if (word != nullptr) atomicCAS(word, 0U, KvFault{layer, part, in_activations}.word());
  }
};

// Returns whether an element was computed in F16 and saturated, which makes it no number. Below,
// the overload for queries reports no fault.
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

// Converts to F16, and below to BF16, as store_kv_reference() does.
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
