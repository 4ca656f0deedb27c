// SPDX-License-Identifier: Apache-2.0
// Code that the kernels of linear layers share: their arguments, the loads of weights, and what
// happens to a finished sum.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/kernel/launch.cuh"
#include "cuda/kernel/values.cuh"
#include "cuda/kernel_args.h"
#include "cuda/linear/linear.h"

namespace spillway::cuda {

struct LinearParams {
  struct Part {
    const std::byte* w;  // [n, k]
    const float* bias;   // [n] or null
    std::byte* out;      // [tokens, n]
    int n;
  };
  Part part[3];
  int count;
  int k;
  int tokens;
  const std::byte* x;  // [tokens, k]
  int64_t x_stride;    // elements
  int64_t out_stride;
  DType out_type;
  Epilogue epilogue;
  ActivationKind activation;
};

// Checks everything that could make a kernel touch foreign memory (throws kInternal).
LinearParams params_of(const LinearCall& call);
// Returns whether x and all weights can be read 16 bytes at a time.
bool is_vector_aligned(const LinearCall& call);
// Counts groups of `rows` rows; a group never spans two parts. Gated calls count rows of the gate.
int row_groups(const LinearParams& p, int rows);

// --- Device code

// Loads 16 bytes of weights, which are read once, so they bypass the L1 cache and leave it to x. It
// is not ld.global.nc: ptxas moved all such loads of linear_flat.cu to a place after
// wait_for_previous(), which they must precede.
__device__ __forceinline__ uint4 load_weights(const std::byte* address) {
  uint4 v;
#if __CUDA_ARCH__ >= 800
  asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
#else
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
#endif
  return v;
}

// Unpacks the elements of 16 bytes to floats.
template <class T>
struct Vector16;
template <>
struct Vector16<float> {
  static constexpr int kCount = 4;
  __device__ static void unpack(const uint4& v, float (&f)[4]) {
    f[0] = __uint_as_float(v.x), f[1] = __uint_as_float(v.y);
    f[2] = __uint_as_float(v.z), f[3] = __uint_as_float(v.w);
  }
};
template <>
struct Vector16<__half> {
  static constexpr int kCount = 8;
  __device__ static void unpack(const uint4& v, float (&f)[8]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
      f[2 * i] = pair.x, f[2 * i + 1] = pair.y;
    }
  }
};
template <>
struct Vector16<__nv_bfloat16> {
  static constexpr int kCount = 8;
  __device__ static void unpack(const uint4& v, float (&f)[8]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      f[2 * i] = __uint_as_float(words[i] << 16);
      f[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
};

// Applies the epilogue to a finished sum and stores it; for every epilogue but kGated.
__device__ __forceinline__ void finish(const LinearParams& p, int part, int row, int token,
                                       float sum) {
  const LinearParams::Part& where = p.part[part];
  if (where.bias != nullptr) sum += where.bias[row];
  const int64_t index = token * p.out_stride + row;
  if (p.epilogue == Epilogue::kAccumulate) {
    reinterpret_cast<float*>(where.out)[index] += sum;
    return;
  }
  if (p.epilogue == Epilogue::kActivate) sum = activated(p.activation, sum);
  store_as(p.out_type, where.out, index, sum);
}

__device__ __forceinline__ void finish_gated(const LinearParams& p, int row, int token, float gate,
                                             float up) {
  if (p.part[0].bias != nullptr) gate += p.part[0].bias[row];
  if (p.part[1].bias != nullptr) up += p.part[1].bias[row];
  store_as(p.out_type, p.part[0].out, token * p.out_stride + row,
           activated(p.activation, gate) * up);
}

struct RowPlace {
  int part;
  int row;
};
// Returns the first row of a group; groups are counted as in row_groups().
__device__ __forceinline__ RowPlace place_of(const LinearParams& p, int group, int rows) {
  if (p.epilogue == Epilogue::kGated) return {0, group * rows};
  int part = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int here = (p.part[i].n + rows - 1) / rows;
    if (part == i && i + 1 < p.count && group >= here) {
      group -= here;
      part = i + 1;
    }
  }
  return {part, group * rows};
}

}  // namespace spillway::cuda
