// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernel/launch.cuh"
#include "cuda/kernel/values.cuh"
#include "cuda/rows/norm.h"
#include "cuda/rows/row_norm.cuh"

namespace spillway::cuda {
namespace {

constexpr int kThreads = kNormThreads;

template <class In, class Out>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(NormKind kind, const In* __restrict__ x, int64_t x_stride,
                const float* __restrict__ weight, const float* __restrict__ bias, float eps,
                Out* out, int64_t out_stride, int dim) {
  __shared__ float partial[kNormWarps];
  let_next_start();
  wait_for_previous();
  const In* const row = x + blockIdx.x * x_stride;
  Out* const to = out + blockIdx.x * out_stride;
  float mean = 0;
  if (kind == NormKind::kLayer) {
    float sum[1] = {};
    for (int i = threadIdx.x; i < dim; i += kThreads) sum[0] += to_f32(row[i]);
    mean = norm_sum<kThreads>(sum, partial) / static_cast<float>(dim);
  }
  float squares[1] = {};
  for (int i = threadIdx.x; i < dim; i += kThreads) {
    const float centered = to_f32(row[i]) - mean;
    squares[0] = fmaf(centered, centered, squares[0]);
  }
  const float variance = norm_sum<kThreads>(squares, partial) / static_cast<float>(dim);
  const float scale = rsqrtf(variance + eps);
  for (int i = threadIdx.x; i < dim; i += kThreads) {
    float y = (to_f32(row[i]) - mean) * scale;
    if (weight != nullptr) y *= weight[i];
    if (bias != nullptr) y += bias[i];
    to[i] = from_f32<Out>(y);
  }
}

// Four elements at a time, each read once, so that out may be x; dim a multiple of 4, at most 4 *
// kThreads * kPerThread, rows aligned.
template <NormKind kKind, class Out, int kPerThread>
__global__ void __launch_bounds__(kThreads)
    vector_norm_kernel(const float* x, int64_t x_stride, const float* __restrict__ weight,
                       const float* __restrict__ bias, float eps, Out* out, int64_t out_stride,
                       int dim) {
  constexpr bool kLayer = kKind == NormKind::kLayer;
  __shared__ float partial[kNormWarps];
  const int quads = dim / 4;
  // Weights do not depend on the kernel before.
  float4 w[kPerThread], b[kLayer ? kPerThread : 1];
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = threadIdx.x + j * kThreads;
    if (i >= quads) continue;
    w[j] = reinterpret_cast<const float4*>(weight)[i];
    if constexpr (kLayer) b[j] = reinterpret_cast<const float4*>(bias)[i];
  }
  let_next_start();
  wait_for_previous();
  const float4* const row = reinterpret_cast<const float4*>(x + blockIdx.x * x_stride);
  NormFours<kThreads, kPerThread> v;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = threadIdx.x + j * kThreads;
    v[0][j] = i < quads ? row[i] : float4{0, 0, 0, 0};
  }
  const float scale = norm_scale<kKind, kThreads, kPerThread>(v, dim, eps, partial);
  Out* const to = out + blockIdx.x * out_stride;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = threadIdx.x + j * kThreads;
    if (i < quads) store_normed<kKind>(to + 4 * i, v[0][j], scale, w[j], b[kLayer ? j : 0]);
  }
}

bool is_aligned(const Activations& a, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(a.data) % bytes == 0 &&
         row_bytes(a.dtype, a.stride) % bytes == 0;
}

}  // namespace

void norm(NormKind kind, const Activations& x, const float* weight, const float* bias, float eps,
          const Activations& out, cudaStream_t stream) {
  SPW_ASSERT(x.rows == out.rows && x.cols == out.cols);
  if (x.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(x.rows));
  const int dim = static_cast<int>(x.cols);
  with_activation_type(out.dtype, [&]<class Out>() {
    const auto is_aligned_vector = [](const float* values) {
      return values != nullptr && reinterpret_cast<uintptr_t>(values) % 16 == 0;
    };
    const bool layer = kind == NormKind::kLayer;
    constexpr int kPerThread = 8;
    const bool fast = x.dtype == DType::kF32 && is_aligned_vector(weight) &&
                      (layer ? is_aligned_vector(bias) : bias == nullptr) && dim % 4 == 0 &&
                      dim <= 4 * kThreads * kPerThread && is_aligned(x, 16) && is_aligned(out, 16);
    if (fast) {
      const auto args = [&](auto kernel) {
        launch(kernel, grid, kThreads, 0, stream, reinterpret_cast<const float*>(x.data), x.stride,
               weight, bias, eps, reinterpret_cast<Out*>(out.data), out.stride, dim);
      };
      const bool few = dim <= 4 * kThreads * 2;
      if (layer) {
        args(few ? vector_norm_kernel<NormKind::kLayer, Out, 2>
                 : vector_norm_kernel<NormKind::kLayer, Out, kPerThread>);
      } else {
        args(few ? vector_norm_kernel<NormKind::kRms, Out, 2>
                 : vector_norm_kernel<NormKind::kRms, Out, kPerThread>);
      }
      return;
    }
    with_activation_type(x.dtype, [&]<class In>() {
      launch(norm_kernel<In, Out>, grid, kThreads, 0, stream, kind,
             reinterpret_cast<const In*>(x.data), x.stride, weight, bias, eps,
             reinterpret_cast<Out*>(out.data), out.stride, dim);
    });
  });
}

}  // namespace spillway::cuda
