// SPDX-License-Identifier: Apache-2.0
// The epilogues of quantized linear layers: bias, activation, gate, store.
#pragma once

#include "cuda/kernel/values.cuh"
#include "cuda/linear/linear_quant_args.h"

namespace spillway::cuda {

// Finishes output `row` of part `p` from its `sum`; for gated calls `up` is the sum of the second
// part.
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
    // Added in L2, where the value lies: one addition per output, and nothing waits for the old
    // value.
    atomicAdd(reinterpret_cast<float*>(out) + at, sum);
  } else {
    store_as(a.out_dtype, out, at, sum);
  }
}

// Finishes outputs `row` to `row` + 3 together, where `row` is a multiple of four: each choice is
// made once.
__device__ __forceinline__ void finish_four(const QuantArgs& a, int p, int row, int token,
                                            const float4& sums, const float4& ups) {
  const QuantPart& part = a.parts[p];
  float sum[4] = {sums.x, sums.y, sums.z, sums.w}, up[4] = {ups.x, ups.y, ups.z, ups.w};
  const auto add_bias = [&](const float* bias, float(&to)[4]) {
    if (bias == nullptr) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] += __ldg(bias + row + i);
  };
  add_bias(part.bias, sum);
  if (a.gated()) add_bias(a.parts[1].bias, up);
  if (a.gated() || a.epilogue == Epilogue::kActivate) {
    const auto activate = [&](auto f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = a.gated() ? f(sum[i]) * up[i] : f(sum[i]);
    };
    if (a.activation == ActivationKind::kSilu) {
      activate([](float v) { return activated(ActivationKind::kSilu, v); });
    } else {
      activate([&](float v) { return activated(a.activation, v); });
    }
  }
  const int64_t at = token * a.out_stride + row;
  auto* const out = static_cast<std::byte*>(part.out);
  if (a.epilogue == Epilogue::kAccumulate) {
    // Added in L2, see finish_output().
#pragma unroll
    for (int i = 0; i < 4; ++i) atomicAdd(reinterpret_cast<float*>(out) + at + i, sum[i]);
    return;
  }
  const auto aligned = [](const void* address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % bytes == 0;
  };
  auto* const halves = reinterpret_cast<__half*>(out) + at;
  auto* const floats = reinterpret_cast<float*>(out) + at;
  if (a.out_dtype == DType::kF16 && aligned(halves, 8)) {
    alignas(8) __half values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = from_f32<__half>(sum[i]);
    *reinterpret_cast<uint2*>(halves) = *reinterpret_cast<const uint2*>(values);
  } else if (a.out_dtype == DType::kF32 && aligned(floats, 16)) {
    *reinterpret_cast<float4*>(floats) = {sum[0], sum[1], sum[2], sum[3]};
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) store_as(a.out_dtype, out, at + i, sum[i]);
  }
}

}  // namespace spillway::cuda
