// SPDX-License-Identifier: Apache-2.0
// The epilogues that follow a library's matrix product where the library does not have them.
#include "cuda/linear/linear_library.h"
#include "cuda/linear/linear_params.cuh"

namespace spillway::cuda {
namespace {

__device__ __forceinline__ float load_as(DType type, const std::byte* data, int64_t index) {
  if (type == DType::kF16) return to_f32(reinterpret_cast<const __half*>(data)[index]);
  if (type == DType::kBF16) return to_f32(reinterpret_cast<const __nv_bfloat16*>(data)[index]);
  return reinterpret_cast<const float*>(data)[index];
}

constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // columns per thread, kThreads apart

// The grid is (tokens, columns).
__global__ void __launch_bounds__(kThreads)
    finish_rows_kernel(std::byte* out, DType type, int64_t stride, int n, const float* bias,
                       bool activate, ActivationKind kind) {
  launch_dependents();
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int column = (blockIdx.y * kPerThread + i) * kThreads + threadIdx.x;
    if (column >= n) return;
    const int64_t at = blockIdx.x * stride + column;
    float v = load_as(type, out, at);
    if (bias != nullptr) v += bias[column];
    store_as(type, out, at, activate ? activated(kind, v) : v);
  }
}

__global__ void __launch_bounds__(kThreads)
    finish_gated_rows_kernel(const std::byte* both, DType type, int n, const float* gate_bias,
                             const float* up_bias, ActivationKind kind, std::byte* out,
                             DType out_type, int64_t stride) {
  launch_dependents();
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int column = (blockIdx.y * kPerThread + i) * kThreads + threadIdx.x;
    if (column >= n) return;
    const int64_t at = int64_t{blockIdx.x} * 2 * n + column;
    float gate = load_as(type, both, at), up = load_as(type, both, at + n);
    if (gate_bias != nullptr) gate += gate_bias[column];
    if (up_bias != nullptr) up += up_bias[column];
    store_as(out_type, out, blockIdx.x * stride + column, activated(kind, gate) * up);
  }
}

dim3 grid_of(int64_t tokens, int64_t n) {
  const int64_t columns = kThreads * kPerThread;
  return dim3(static_cast<unsigned>(tokens), static_cast<unsigned>((n + columns - 1) / columns));
}

}  // namespace

void finish_rows(const Activations& out, const float* bias, bool activate, ActivationKind kind,
                 cudaStream_t stream) {
  launch(finish_rows_kernel, grid_of(out.rows, out.cols), dim3(kThreads), 0, stream, out.data,
         out.dtype, out.stride, static_cast<int>(out.cols), bias, activate, kind);
}

void finish_gated_rows(const Activations& both, const float* gate_bias, const float* up_bias,
                       ActivationKind kind, const Activations& out, cudaStream_t stream) {
  SPW_ASSERT(both.stride == both.cols && both.cols == 2 * out.cols && both.rows == out.rows);
  launch(finish_gated_rows_kernel, grid_of(out.rows, out.cols), dim3(kThreads), 0, stream,
         both.data, both.dtype, static_cast<int>(out.cols), gate_bias, up_bias, kind, out.data,
         out.dtype, out.stride);
}

}  // namespace spillway::cuda
