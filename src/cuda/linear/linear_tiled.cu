// SPDX-License-Identifier: Apache-2.0
// Linear layers without a library: any type, size, alignment and GPU. 16-bit types use
// linear_staged.cu where they can; the rest is a plain tiled product in F32. This file also says
// where the kinds of kernel begin by default.
#include <algorithm>

#include "cuda/linear/linear.h"
#include "cuda/linear/linear_flat.cuh"

namespace spillway::cuda {
namespace {

constexpr int kTile = 64;   // tokens and rows of a thread block
constexpr int kDepth = 16;  // columns per step

// 256 threads compute 4 x 4 sums each; the rows of a thread are 16 apart so that stores coalesce.
// The grid is (row groups, tokens).
template <class T>
__global__ void __launch_bounds__(256) tiled_kernel(const __grid_constant__ LinearParams p) {
  __shared__ float xs[kDepth][kTile + 4];
  __shared__ float ws[2][kDepth][kTile + 1];
  launch_dependents();
  wait_for_previous();
  const bool gated = p.epilogue == Epilogue::kGated;
  const RowPlace place = place_of(p, blockIdx.x, kTile);
  const int n = p.part[place.part].n, token0 = blockIdx.y * kTile;
  const int tr = threadIdx.x % 16, tt = threadIdx.x / 16;
  const int matrices = gated ? 2 : 1;
  float sum[2][4][4] = {};
  for (int k0 = 0; k0 < p.k; k0 += kDepth) {
    for (int at = threadIdx.x; at < kTile * kDepth; at += 256) {
      const int c = at % kDepth, i = at / kDepth, column = k0 + c;
      const bool inside = column < p.k;
      xs[c][i] = inside && token0 + i < p.tokens
                     ? to_f32(reinterpret_cast<const T*>(p.x)[(token0 + i) * p.x_stride + column])
                     : 0;
      for (int q = 0; q < matrices; ++q) {
        const T* w = reinterpret_cast<const T*>(p.part[place.part + q].w);
        ws[q][c][i] =
            inside && place.row + i < n ? to_f32(w[int64_t{place.row + i} * p.k + column]) : 0;
      }
    }
    __syncthreads();
    for (int q = 0; q < matrices; ++q) {
#pragma unroll
      for (int c = 0; c < kDepth; ++c) {
        float xv[4], wv[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) xv[i] = xs[c][tt * 4 + i], wv[i] = ws[q][c][tr + 16 * i];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            // Gate and up are indexed with constants so that their sums stay in registers.
            if (q == 0) sum[0][i][j] = fmaf(xv[i], wv[j], sum[0][i][j]);
            if (q == 1) sum[1][i][j] = fmaf(xv[i], wv[j], sum[1][i][j]);
          }
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int token = token0 + tt * 4 + i, row = place.row + tr + 16 * j;
      if (token >= p.tokens || row >= n) continue;
      if (gated) {
        finish_gated(p, row, token, sum[0][i][j], sum[1][i][j]);
      } else {
        finish(p, place.part, row, token, sum[0][i][j]);
      }
    }
  }
}

template <class T>
void run(const LinearParams& p, cudaStream_t stream) {
  launch(tiled_kernel<T>, dim3(row_groups(p, kTile), (p.tokens + kTile - 1) / kTile), dim3(256), 0,
         stream, p);
}

}  // namespace

void linear_tiled(const LinearCall& call, const LinearScratch& scratch, cudaStream_t stream) {
  if (call.x.rows == 0) return;
  const LinearProblem problem = problem_of(call);
  const GpuShape gpu = current_gpu();
  if (problem.dtype != DType::kF32 && gpu.compute_capability >= 80 && is_vector_aligned(call)) {
    return linear_staged(call, plan_staged(problem, gpu), scratch, stream);
  }
  const LinearParams p = params_of(call);
  switch (problem.dtype) {
    case DType::kF16:
      return run<__half>(p, stream);
    case DType::kBF16:
      return run<__nv_bfloat16>(p, stream);
    default:
      return run<float>(p, stream);
  }
}

InflectionPoints default_points(const LinearProblem& problem, bool library) {
  // Without tensor cores, only the passes of linear_gemv.cu come before a GEMM.
  if (problem.dtype == DType::kF32) return {kGemvTokens + 1, 2 * kGemvTokens + 1};
  // Measured on an H200: the flat kernels win from one token on (4096 x 4096: 10.3 us, GEMV 12.1;
  // 16384 x 4096: 31.6 and 34.1), for gated layers from 3 on. With few rows they win up to 8
  // tokens, gated (which the library computes in two steps) up to 16; otherwise the library is as
  // fast from 3 on.
  const GpuShape gpu = current_gpu();
  const bool few_rows = !problem.gated && has_few_rows(problem, gpu);
  const int32_t m1 = few_rows || (!problem.gated && gpu.compute_capability >= 90) ? 1 : 3;
  if (!library) return {m1, kNeverInflection};
  return {m1, problem.gated ? 17 : few_rows ? 9 : 3};
}

}  // namespace spillway::cuda
