// SPDX-License-Identifier: Apache-2.0
// Computes the norm of a row by one thread block. Sums are made in the order of kNormThreads
// threads, even if the thread block has fewer, so that all kernels that compute norms give the same
// bits.
#pragma once

#include "cuda/kernel/block_sync.cuh"
#include "cuda/kernel/values.cuh"

namespace spillway::cuda {

inline constexpr int kNormThreads = 512;
inline constexpr int kNormWarps = kNormThreads / 32;

// Returns the sum over the thread block to every thread. Each thread passes the values of
// kNormThreads / Threads threads, its own first. `partial`: kNormWarps floats of shared memory.
template <int Threads>
__device__ __forceinline__ float norm_sum(float (&values)[kNormThreads / Threads], float* partial) {
#pragma unroll
  for (int s = 0; s < kNormThreads / Threads; ++s) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      values[s] += __shfl_xor_sync(0xffffffffU, values[s], offset);
    }
    if (threadIdx.x % 32 == 0) partial[(threadIdx.x + s * Threads) / 32] = values[s];
  }
  sync_first<Threads>();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kNormWarps; ++i) sum += partial[i];
  sync_first<Threads>();  // partial may be written again after this
  return sum;
}

// A thread's float4 elements of a row. The one of slot s and round j has index threadIdx.x + s *
// Threads + j * kNormThreads. Those after the row's end are zero.
template <int Threads, int Rounds>
using NormFours = float4[kNormThreads / Threads][Rounds];

template <int Threads>
__device__ __forceinline__ int norm_four(int slot, int round) {
  return static_cast<int>(threadIdx.x) + slot * Threads + round * kNormThreads;
}

// Returns the scale of the row in `v`; with NormKind::kLayer it also subtracts the mean from v.
template <NormKind kKind, int Threads, int Rounds>
__device__ __forceinline__ float norm_scale(NormFours<Threads, Rounds>& v, int dim, float eps,
                                            float* partial) {
  constexpr int kSlots = kNormThreads / Threads;
  if constexpr (kKind == NormKind::kLayer) {
    float sums[kSlots] = {};
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
#pragma unroll
      for (int j = 0; j < Rounds; ++j) {
        sums[s] += (v[s][j].x + v[s][j].y) + (v[s][j].z + v[s][j].w);
      }
    }
    const float mean = norm_sum<Threads>(sums, partial) / static_cast<float>(dim);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
#pragma unroll
      for (int j = 0; j < Rounds; ++j) {
        if (norm_four<Threads>(s, j) >= dim / 4) continue;
        v[s][j].x -= mean, v[s][j].y -= mean, v[s][j].z -= mean, v[s][j].w -= mean;
      }
    }
  }
  float squares[kSlots] = {};
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
#pragma unroll
    for (int j = 0; j < Rounds; ++j) {
      squares[s] = fmaf(v[s][j].x, v[s][j].x, squares[s]);
      squares[s] = fmaf(v[s][j].y, v[s][j].y, squares[s]);
      squares[s] = fmaf(v[s][j].z, v[s][j].z, squares[s]);
      squares[s] = fmaf(v[s][j].w, v[s][j].w, squares[s]);
    }
  }
  return rsqrtf(norm_sum<Threads>(squares, partial) / static_cast<float>(dim) + eps);
}

// Stores four normalized elements as `Out`; `b` is added if the kind has a bias.
template <NormKind kKind, class Out>
__device__ __forceinline__ void store_normed(Out* to, const float4& v, float scale, const float4& w,
                                             const float4& b) {
  // Written out so that the compiler does not fuse operations in one kernel and not in another.
  const auto normed = [&](float x, float weight, float bias) {
    const float scaled = __fmul_rn(x, scale);
    return kKind == NormKind::kLayer ? fmaf(scaled, weight, bias) : __fmul_rn(scaled, weight);
  };
  const float4 y = {normed(v.x, w.x, b.x), normed(v.y, w.y, b.y), normed(v.z, w.z, b.z),
                    normed(v.w, w.w, b.w)};
  union {
    Out values[4];
    uint64_t bits[sizeof(Out) / 2];
  } packed;
  packed.values[0] = from_f32<Out>(y.x);
  packed.values[1] = from_f32<Out>(y.y);
  packed.values[2] = from_f32<Out>(y.z);
  packed.values[3] = from_f32<Out>(y.w);
#pragma unroll
  for (int k = 0; k < static_cast<int>(sizeof(Out) / 2); ++k) {
    reinterpret_cast<uint64_t*>(to)[k] = packed.bits[k];
  }
}

}  // namespace spillway::cuda
