// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernel/launch.cuh"
#include "cuda/kernel/values.cuh"
#include "cuda/kv/kv_faults.cuh"
#include "cuda/rows/norm.h"
#include "cuda/rows/row_norm.cuh"

namespace spillway::cuda {
namespace {

constexpr int kThreads = kNormThreads;

template <class In, class Out, bool kAdds = false>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(NormKind kind, const In* __restrict__ x, int64_t x_stride,
                const float* __restrict__ weight, const float* __restrict__ bias, float eps,
                Out* out, int64_t out_stride, int dim) {
  __shared__ float partial[kNormWarps];
  launch_dependents();
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
    if constexpr (kAdds) y += to_f32(to[i]);
    to[i] = from_f32<Out>(y);
  }
}

// Reads four elements at a time, each once, so that out may be x. dim is a multiple of 4 and at
// most 4 * kThreads * kPerThread; rows are aligned.
template <NormKind kKind, class Out, int kPerThread>
__global__ void __launch_bounds__(kThreads)
    vector_norm_kernel(const float* x, int64_t x_stride, const float* __restrict__ weight,
                       const float* __restrict__ bias, float eps, Out* out, int64_t out_stride,
                       int dim) {
  constexpr bool kLayer = kKind == NormKind::kLayer;
  __shared__ float partial[kNormWarps];
  const int quads = dim / 4;
  // Weights can be read before the previous kernel has ended.
  float4 w[kPerThread], b[kLayer ? kPerThread : 1];
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = threadIdx.x + j * kThreads;
    if (i >= quads) continue;
    w[j] = reinterpret_cast<const float4*>(weight)[i];
    if constexpr (kLayer) b[j] = reinterpret_cast<const float4*>(bias)[i];
  }
  launch_dependents();
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

// Each warp computes one head.
constexpr int kHeadWarps = 4;
template <class T>
__global__ void __launch_bounds__(kHeadWarps * 32)
    head_norm_kernel(NormKind kind, T* x, int64_t stride, int heads, int head_dim,
                     const float* __restrict__ weight, float eps, int64_t count, DType type) {
  launch_dependents();
  wait_for_previous();
  const int64_t number = int64_t{blockIdx.x} * kHeadWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (number >= count) return;
  T* const head = x + number / heads * stride + number % heads * head_dim;
  const auto value = [&](int i) { return unless_saturated(type, to_f32(head[i])); };
  const auto sum_of_warp = [](float sum) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
    return sum;
  };
  float mean = 0;
  if (kind == NormKind::kLayer) {
    float sum = 0;
    for (int i = lane; i < head_dim; i += 32) sum += value(i);
    mean = sum_of_warp(sum) / static_cast<float>(head_dim);
  }
  float squares = 0;
  for (int i = lane; i < head_dim; i += 32) {
    const float centered = value(i) - mean;
    squares = fmaf(centered, centered, squares);
  }
  const float scale = rsqrtf(sum_of_warp(squares) / static_cast<float>(head_dim) + eps);
  for (int i = lane; i < head_dim; i += 32)
    head[i] = from_f32<T>((value(i) - mean) * scale * weight[i]);
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

void add_norm(NormKind kind, const Activations& x, const float* weight, const float* bias,
              float eps, const Activations& out, cudaStream_t stream) {
  SPW_ASSERT(x.rows == out.rows && x.cols == out.cols);
  SPW_ASSERT(x.dtype == DType::kF32 && out.dtype == DType::kF32);
  if (x.rows == 0) return;
  launch(norm_kernel<float, float, true>, dim3(static_cast<unsigned>(x.rows)), kThreads, 0, stream,
         kind, reinterpret_cast<const float*>(x.data), x.stride, weight, bias, eps,
         reinterpret_cast<float*>(out.data), out.stride, static_cast<int>(x.cols));
}

void head_norm(NormKind kind, const Activations& x, int head_dim, const float* weight, float eps,
               cudaStream_t stream) {
  SPW_ASSERT(x.cols % head_dim == 0 && weight != nullptr);
  const int heads = static_cast<int>(x.cols / head_dim);
  const int64_t count = x.rows * heads;
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>((count + kHeadWarps - 1) / kHeadWarps));
  with_activation_type(x.dtype, [&]<class T>() {
    launch(head_norm_kernel<T>, grid, kHeadWarps * 32, 0, stream, kind,
           reinterpret_cast<T*>(x.data), x.stride, heads, head_dim, weight, eps, count, x.dtype);
  });
}

}  // namespace spillway::cuda
