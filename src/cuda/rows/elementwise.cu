// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "cuda/kernel/launch.cuh"
#include "cuda/kernel/values.cuh"
#include "cuda/kv/kv_faults.cuh"
#include "cuda/rows/elementwise.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 256;

// The grid is columns by rows. Kernels stride over rows, as there may be more than a grid holds.
dim3 grid_of(int64_t rows, int64_t cols) {
  return {static_cast<unsigned>((cols + kThreads - 1) / kThreads),
          static_cast<unsigned>(std::min<int64_t>(rows, 32768))};
}

template <class T>
__global__ void activate_kernel(ActivationKind kind, T* x, int64_t stride, int64_t rows,
                                int64_t cols) {
  launch_dependents();
  wait_for_previous();
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    T& at = x[row * stride + col];
    at = from_f32<T>(activated(kind, to_f32(at)));
  }
}

__global__ void scale_kernel(float* x, int64_t stride, int64_t rows, int64_t cols, float factor) {
  launch_dependents();
  wait_for_previous();
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) x[row * stride + col] *= factor;
}

template <class T>
__global__ void gated_activate_kernel(ActivationKind kind, const T* gate, int64_t gate_stride,
                                      const T* up, int64_t up_stride, T* out, int64_t out_stride,
                                      int64_t rows, int64_t cols) {
  launch_dependents();
  wait_for_previous();
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const float g = to_f32(gate[row * gate_stride + col]), u = to_f32(up[row * up_stride + col]);
    out[row * out_stride + col] = from_f32<T>(activated(kind, g) * u);
  }
}

// Loads from memory, past this GPU's caches.
template <class T>
__device__ __forceinline__ void load_anew(const T* from, T& to) {
  if constexpr (sizeof(T) == 16) {
    reinterpret_cast<uint4&>(to) = __ldcv(reinterpret_cast<const uint4*>(from));
  } else if constexpr (sizeof(T) == 8) {
    reinterpret_cast<uint2&>(to) = __ldcv(reinterpret_cast<const uint2*>(from));
  } else if constexpr (sizeof(T) == 4) {
    reinterpret_cast<uint32_t&>(to) = __ldcv(reinterpret_cast<const uint32_t*>(from));
  } else {
    static_assert(sizeof(T) == 2);
    reinterpret_cast<uint16_t&>(to) = __ldcv(reinterpret_cast<const uint16_t*>(from));
  }
}

template <class In, class Out>
__global__ void gather_kernel(const In* __restrict__ x, int64_t x_stride,
                              const int32_t* __restrict__ indices, Out* __restrict__ out,
                              int64_t out_stride, int64_t rows, int64_t cols) {
  launch_dependents();
  wait_for_previous();
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const int64_t from = indices == nullptr ? row : indices[row];
    out[row * out_stride + col] = from_f32<Out>(to_f32(x[from * x_stride + col]));
  }
}

// A thread copies four columns where these are aligned: each access to host memory crosses the bus.
// It is read anew every time, because this GPU's caches do not see the host's writes.
template <class In, class Out, int kWide>
__global__ void copy_kernel(const In* x, int64_t x_stride, Out* out, int64_t out_stride,
                            int64_t rows, int64_t cols) {
  struct alignas(sizeof(In) * kWide) Read {
    In at[kWide];
  };
  struct alignas(sizeof(Out) * kWide) Written {
    Out at[kWide];
  };
  launch_dependents();
  wait_for_previous();
  const int64_t col = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWide;
  if (col >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    Read read;
    load_anew(reinterpret_cast<const Read*>(x + row * x_stride + col), read);
    auto* const to = reinterpret_cast<Written*>(out + row * out_stride + col);
    Written written;
#pragma unroll
    for (int i = 0; i < kWide; ++i) written.at[i] = from_f32<Out>(to_f32(read.at[i]));
    *to = written;
  }
}

__global__ void rope_angles_kernel(const int32_t* __restrict__ positions,
                                   const float* __restrict__ frequencies, float scale,
                                   float* __restrict__ out, int64_t stride, int64_t rows,
                                   int64_t pairs) {
  launch_dependents();
  wait_for_previous();
  const int64_t pair = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pair >= pairs) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    // The angle is computed in double: at position 100,000 a float angle would be off by 1/200.
    double sine, cosine;
    sincos(static_cast<double>(positions[row]) * static_cast<double>(frequencies[pair]), &sine,
           &cosine);
    out[row * stride + 2 * pair] = static_cast<float>(cosine * scale);
    out[row * stride + 2 * pair + 1] = static_cast<float>(sine * scale);
  }
}

// Reads an element the way rope_and_append() does.
template <class T>
__device__ __forceinline__ float rope_input(T x) {
  const bool is_half = std::is_same_v<T, __half>;
  return unless_saturated(is_half ? DType::kF16 : DType::kF32, to_f32(x));
}

template <class T>
__global__ void rope_kernel(T* x, int64_t x_stride, const float* __restrict__ angles,
                            int64_t angle_stride, RopeStyle style, int head_dim, int pairs,
                            int64_t rows, int64_t work) {
  launch_dependents();
  wait_for_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;  // index of (head, pair)
  if (i >= work) return;
  const int64_t head = i / pairs;
  const int pair = static_cast<int>(i % pairs);
  const bool interleaved = style == RopeStyle::kInterleaved;
  const int64_t first = head * head_dim + (interleaved ? 2 * pair : pair);
  const int64_t second = first + (interleaved ? 1 : pairs);
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    T* const at = x + row * x_stride;
    const float a = rope_input(at[first]), b = rope_input(at[second]);
    const float cosine = angles[row * angle_stride + 2 * pair];
    const float sine = angles[row * angle_stride + 2 * pair + 1];
    at[first] = from_f32<T>(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)));
    at[second] = from_f32<T>(__fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
  }
}

}  // namespace

void activate(ActivationKind kind, const Activations& x, cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return;
  with_activation_type(x.dtype, [&]<class T>() {
    launch(activate_kernel<T>, grid_of(x.rows, x.cols), kThreads, 0, stream, kind,
           reinterpret_cast<T*>(x.data), x.stride, x.rows, x.cols);
  });
}

void scale(const Activations& x, float factor, cudaStream_t stream) {
  SPW_ASSERT(x.dtype == DType::kF32);
  if (x.rows == 0) return;
  launch(scale_kernel, grid_of(x.rows, x.cols), kThreads, 0, stream,
         reinterpret_cast<float*>(x.data), x.stride, x.rows, x.cols, factor);
}

void gated_activate(ActivationKind kind, const Activations& gate, const Activations& up,
                    const Activations& out, cudaStream_t stream) {
  SPW_ASSERT(gate.dtype == up.dtype && up.dtype == out.dtype && gate.rows == up.rows &&
             up.rows == out.rows && gate.cols == up.cols && up.cols == out.cols);
  if (out.rows == 0 || out.cols == 0) return;
  with_activation_type(out.dtype, [&]<class T>() {
    launch(gated_activate_kernel<T>, grid_of(out.rows, out.cols), kThreads, 0, stream, kind,
           reinterpret_cast<const T*>(gate.data), gate.stride, reinterpret_cast<const T*>(up.data),
           up.stride, reinterpret_cast<T*>(out.data), out.stride, out.rows, out.cols);
  });
}

void gather_rows(const Activations& x, const int32_t* rows, const Activations& out,
                 cudaStream_t stream) {
  SPW_ASSERT(x.cols == out.cols && (rows != nullptr || x.rows == out.rows));
  if (out.rows == 0 || out.cols == 0) return;
  with_activation_type(x.dtype, [&]<class In>() {
    with_activation_type(out.dtype, [&]<class Out>() {
      launch(gather_kernel<In, Out>, grid_of(out.rows, out.cols), kThreads, 0, stream,
             reinterpret_cast<const In*>(x.data), x.stride, rows, reinterpret_cast<Out*>(out.data),
             out.stride, out.rows, out.cols);
    });
  });
}

void copy_rows(const Activations& x, const Activations& out, cudaStream_t stream) {
  SPW_ASSERT(x.cols == out.cols && x.rows == out.rows);
  if (out.rows == 0 || out.cols == 0) return;
  constexpr int kWide = 4;
  const auto is_wide = [](const Activations& of) {
    const auto bytes = static_cast<uintptr_t>(row_bytes(of.dtype, kWide));
    return reinterpret_cast<uintptr_t>(of.data) % bytes == 0 && of.stride % kWide == 0 &&
           of.cols % kWide == 0;
  };
  with_activation_type(x.dtype, [&]<class In>() {
    with_activation_type(out.dtype, [&]<class Out>() {
      const auto run = [&](auto kernel, int wide) {
        launch(kernel, grid_of(out.rows, out.cols / wide), kThreads, 0, stream,
               reinterpret_cast<const In*>(x.data), x.stride, reinterpret_cast<Out*>(out.data),
               out.stride, out.rows, out.cols);
      };
      if (is_wide(x) && is_wide(out)) {
        run(copy_kernel<In, Out, kWide>, kWide);
      } else {
        run(copy_kernel<In, Out, 1>, 1);
      }
    });
  });
}

void rope_angles(const int32_t* positions, const float* frequencies, float scale,
                 const Activations& out, cudaStream_t stream) {
  SPW_ASSERT(out.dtype == DType::kF32 && out.cols % 2 == 0);
  if (out.rows == 0 || out.cols == 0) return;
  launch(rope_angles_kernel, grid_of(out.rows, out.cols / 2), kThreads, 0, stream, positions,
         frequencies, scale, reinterpret_cast<float*>(out.data), out.stride, out.rows,
         out.cols / 2);
}

void rope(const Activations& x, int head_dim, const Activations& angles, RopeStyle style,
          cudaStream_t stream) {
  SPW_ASSERT(angles.dtype == DType::kF32 && angles.rows == x.rows && angles.cols <= head_dim &&
             angles.cols % 2 == 0 && x.cols % head_dim == 0);
  const int pairs = static_cast<int>(angles.cols / 2);
  const int64_t work = x.cols / head_dim * pairs;
  if (x.rows == 0 || work == 0) return;
  with_activation_type(x.dtype, [&]<class T>() {
    launch(rope_kernel<T>, grid_of(x.rows, work), kThreads, 0, stream, reinterpret_cast<T*>(x.data),
           x.stride, reinterpret_cast<const float*>(angles.data), angles.stride, style, head_dim,
           pairs, x.rows, work);
  });
}

}  // namespace spillway::cuda
