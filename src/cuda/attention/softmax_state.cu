// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/softmax_state.h"

#include "base/error.h"
#include "cuda/attention/attention_args.cuh"
#include "cuda/cuda_error.h"
#include "cuda/kernel/launch.cuh"
#include "cuda/kernel/warp_ptx.cuh"

namespace spillway::cuda {
namespace {

constexpr int kHeadsPerBlock = 8;  // a warp computes one head
constexpr float kNothingSeen = -3.0e38F;

struct SumsArgs {
  float* rows;
  int64_t stride;
  int heads, head_dim;

  __device__ __forceinline__ float* outputs(int64_t row, int head) const {
    return rows + row * stride + int64_t{head} * head_dim;
  }
  // The head's sum lies `heads` floats after its maximum.
  __device__ __forceinline__ float* maximum(int64_t row, int head) const {
    return rows + row * stride + int64_t{heads} * head_dim + head;
  }
};

SumsArgs args_of(const SoftmaxState& sums) {
  SPW_ASSERT(sums.memory.dtype == DType::kF32 && sums.memory.stride % 4 == 0 &&
             sums.memory.stride >= softmax_state_columns(sums.heads, sums.head_dim) &&
             sums.head_dim % 4 == 0);
  return {reinterpret_cast<float*>(sums.memory.data), sums.memory.stride, sums.heads,
          sums.head_dim};
}

dim3 grid_of(const SoftmaxState& sums) {
  return {static_cast<unsigned>((sums.heads + kHeadsPerBlock - 1) / kHeadsPerBlock),
          static_cast<unsigned>(sums.rows()), 1};
}

// Finds the head and the row of this warp. Returns false if it has none.
__device__ __forceinline__ bool find_head(const SumsArgs& a, int& head, int64_t& row, int& lane) {
  lane = static_cast<int>(threadIdx.x) % kWarpSize;
  head = static_cast<int>(blockIdx.x * kHeadsPerBlock + threadIdx.x / kWarpSize);
  row = blockIdx.y;
  return head < a.heads;
}

__global__ __launch_bounds__(kHeadsPerBlock* kWarpSize) void clear_sums_kernel(SumsArgs a,
                                                                               bool outputs) {
  launch_dependents();
  wait_for_previous();
  int head, lane;
  int64_t row;
  if (!find_head(a, head, row, lane)) return;
  for (int d = lane; outputs && d < a.head_dim; d += kWarpSize) a.outputs(row, head)[d] = 0;
  if (lane != 0) return;
  a.maximum(row, head)[0] = kNothingSeen;
  a.maximum(row, head)[a.heads] = 0;
}

__global__ __launch_bounds__(kHeadsPerBlock* kWarpSize) void add_sums_kernel(SumsArgs seen,
                                                                             SumsArgs to) {
  launch_dependents();
  wait_for_previous();
  int head, lane;
  int64_t row;
  if (!find_head(to, head, row, lane)) return;
  const float new_maximum = seen.maximum(row, head)[0], new_sum = seen.maximum(row, head)[to.heads];
  if (new_sum == 0) return;
  float* const maximum = to.maximum(row, head);
  const float old_maximum = maximum[0], old_sum = maximum[to.heads];
  const float top = old_sum == 0 ? new_maximum : fmaxf(old_maximum, new_maximum);
  const float old_weight = old_sum == 0 ? 0 : exp2_fast((old_maximum - top) * kLog2E);
  const float new_weight = new_maximum == top ? 1 : exp2_fast((new_maximum - top) * kLog2E);
  const auto* const from = reinterpret_cast<const float4*>(seen.outputs(row, head));
  auto* const out = reinterpret_cast<float4*>(to.outputs(row, head));
  for (int i = lane; i < to.head_dim / 4; i += kWarpSize) {
    const float4 x = out[i], y = from[i];
    out[i] = make_float4(
        fmaf(x.x, old_weight, y.x * new_weight), fmaf(x.y, old_weight, y.y * new_weight),
        fmaf(x.z, old_weight, y.z * new_weight), fmaf(x.w, old_weight, y.w * new_weight));
  }
  __syncwarp();  // all lanes have read the old state
  if (lane != 0) return;
  maximum[0] = top;
  maximum[to.heads] = fmaf(old_sum, old_weight, new_sum * new_weight);
}

__global__ __launch_bounds__(kHeadsPerBlock* kWarpSize) void finish_sums_kernel(SumsArgs a,
                                                                                std::byte* out,
                                                                                int64_t out_stride,
                                                                                DType type) {
  launch_dependents();
  wait_for_previous();
  int head, lane;
  int64_t row;
  if (!find_head(a, head, row, lane)) return;
  const float sum = a.maximum(row, head)[a.heads];
  const float* const from = a.outputs(row, head);
  std::byte* const to = out + (row * out_stride + int64_t{head} * a.head_dim) * element_bytes(type);
  for (int d = lane; d < a.head_dim; d += kWarpSize) store_element(to, type, d, from[d] / sum);
}

template <class... Args>
void launch_heads(void (*kernel)(Args...), const SoftmaxState& sums, cudaStream_t stream,
                  Args... args) {
  if (sums.rows() == 0) return;
  launch(kernel, grid_of(sums), dim3(kHeadsPerBlock * kWarpSize), 0, stream, args...);
}

}  // namespace

void clear_state(const SoftmaxState& sums, cudaStream_t stream) {
  launch_heads(clear_sums_kernel, sums, stream, args_of(sums), true);
}

void mark_unseen(const SoftmaxState& sums, cudaStream_t stream) {
  launch_heads(clear_sums_kernel, sums, stream, args_of(sums), false);
}

void merge_state(const SoftmaxState& seen, const SoftmaxState& sums, cudaStream_t stream) {
  SPW_ASSERT(seen.rows() == sums.rows() && seen.heads == sums.heads &&
             seen.head_dim == sums.head_dim);
  launch_heads(add_sums_kernel, sums, stream, args_of(seen), args_of(sums));
}

void finish_state(const SoftmaxState& sums, const Activations& out, cudaStream_t stream) {
  SPW_ASSERT(out.rows == sums.rows() && out.cols == sums.maxima());
  launch_heads(finish_sums_kernel, sums, stream, args_of(sums), out.data, out.stride, out.dtype);
}

}  // namespace spillway::cuda
