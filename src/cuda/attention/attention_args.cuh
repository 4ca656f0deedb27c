// SPDX-License-Identifier: Apache-2.0
// The arguments of every attention kernel, and how kernels on CUDA cores load queries and score
// keys.
#pragma once

#include "cuda/attention/attention_call.h"
#include "cuda/attention/attention_page.cuh"

namespace spillway::cuda {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

struct AttentionArgs {
  const std::byte* q;
  std::byte* out;
  int64_t q_stride;  // elements
  int64_t out_stride;
  DType dtype;
  KvSource kv;
  int64_t block_bytes;
  int page_bytes;
  PageShape shape;
  int kv_heads;
  int group;  // query heads per kv head
  int window;
  BatchView batch;
  float scale_log2;  // scores become exponents of 2
  // These are the same as in AttentionCall.
  const int32_t* covered;
  float* sums;
  int64_t sums_stride;

  // Returns the end of the positions that the row of a sequence at `position` attends to.
  __device__ __forceinline__ int end_of(int sequence, int position) const {
    return covered == nullptr ? position + 1 : min(position + 1, covered[sequence]);
  }
  __device__ __forceinline__ int begin_of(int position) const {
    return window > 0 ? max(0, position + 1 - window) : 0;
  }
  // Returns a row's softmax states: outputs of all heads, then their maxima, then their sums
  // (SoftmaxState).
  __device__ __forceinline__ float* sums_row(int64_t row) const { return sums + row * sums_stride; }
  __device__ __forceinline__ int heads() const { return kv_heads * group; }
  // Stores the maximum and the sum of head `head` of a row; `sum` is relative to 2^reference.
  __device__ __forceinline__ void store_sum(int64_t row, int head, float reference,
                                            float sum) const {
    float* const maximum = sums_row(row) + heads() * shape.head_dim + head;
    *maximum = reference * kLn2;
    maximum[heads()] = sum;
  }
  // The query and the output of one head of one row.
  __device__ __forceinline__ const std::byte* query(int64_t row, int64_t head) const {
    return q + (row * q_stride + head * shape.head_dim) * element_bytes(dtype);
  }
  __device__ __forceinline__ std::byte* output(int64_t row, int64_t head) const {
    return out + (row * out_stride + head * shape.head_dim) * element_bytes(dtype);
  }
  // Returns a sequence's row of a table that has an entry for each of its KV blocks.
  __device__ __forceinline__ const int32_t* row_of(const int32_t* table, int sequence) const {
    return table + static_cast<int64_t>(sequence) * batch.table_stride;
  }
  __device__ __forceinline__ const std::byte* page_at(const std::byte* plane, int32_t block,
                                                      int kv_head) const {
    return plane + block * block_bytes + static_cast<int64_t>(kv_head) * page_bytes;
  }
};

inline AttentionArgs attention_args(const AttentionCall& call) {
  check_attention_call(call);
  const KvLayerView& kv = call.kv;
  const KvPageLayout layout(kv.type, kv.head_dim);
  return {
      .q = call.q.data,
      .out = call.out.data,
      .q_stride = call.q.stride,
      .out_stride = call.out.stride,
      .dtype = call.q.dtype,
      .kv = {{kv.k, kv.v}, call.planes},
      .block_bytes = kv.block_bytes(),
      .page_bytes = static_cast<int>(layout.bytes),
      .shape = PageShape(layout),
      .kv_heads = kv.kv_heads,
      .group = call.params.heads / kv.kv_heads,
      .window = call.params.window,
      .batch = call.batch,
      .scale_log2 = call.params.scale * kLog2E,
      .covered = call.covered,
      .sums = call.sums,
      .sums_stride = call.sums_stride,
  };
}

// A warp loads a query [head_dim] to shared memory and rotates it if the keys are rotated.
template <KvType kType>
__device__ __forceinline__ void load_query(const AttentionArgs& a, int64_t row, int64_t head,
                                           float* to, int lane) {
  const std::byte* from = a.query(row, head);
  for (int d = lane; d < a.shape.head_dim; d += kWarpSize) to[d] = load_element(from, a.dtype, d);
  if constexpr (is_rotated(kType)) rotate_in_warp(to, a.shape.head_dim, lane);
}

// Sets score[q] to queries [count][head_dim] times the key of `token`, not scaled.
template <KvType kType, int kQueries>
__device__ __forceinline__ void score_key(const AttentionArgs& a, const float* queries, int count,
                                          const std::byte* page, int token,
                                          float (&score)[kQueries]) {
  const int dim = a.shape.head_dim;
#pragma unroll
  for (int q = 0; q < kQueries; ++q) score[q] = 0;
  for (int d = 0; d < dim; d += 8) {
    float k[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) k[i] = load_kv<kType, KvPart::kKeys>(a.shape, page, token, d + i);
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      if (q >= count) break;
#pragma unroll
      for (int i = 0; i < 8; ++i) score[q] = fmaf(queries[q * dim + d + i], k[i], score[q]);
    }
  }
}

}  // namespace spillway::cuda
