// SPDX-License-Identifier: Apache-2.0
// Turns the sums of q, k and v of one token into their results: applies RoPE, and stores k and v in
// their F16 pages, in the kernel that computed the sums. The bits are those that linears() and
// rope_and_append() give, so that it does not matter which of them computes a sequence.
#pragma once

#include "cuda/kv/kv_append.h"
#include "cuda/kv/kv_faults.cuh"
#include "cuda/linear/linear_params.cuh"
#include "tensor/kv_format.h"

namespace spillway::cuda {

// Parts 0, 1 and 2 are q, k and v. A kernel has both rows of a pair that RoPE rotates.
struct QkvAppend {
  const float* angles = nullptr;  // [head_dim] (cos, sin) pairs
  bool interleaved = false;
  int head_dim = 0;
  KvSource kv = {};
  int64_t block_bytes = 0;
  int page_bytes = 0;
  const int32_t* position = nullptr;  // of the token
  const int32_t* block_table = nullptr;
  KvFaults faults = {};

  // Returns the first (r = 0) or second (r = 1) row of pair `pair` of a part.
  __device__ __forceinline__ int row_of(int part, int pair, int r) const {
    if (part == 2 || interleaved) return 2 * pair + r;
    const int half = head_dim / 2;
    return pair / half * head_dim + pair % half + r * half;
  }
  // Returns a pair's cosine and sine.
  __device__ __forceinline__ float2 angle_of(int part, int pair) const {
    if (part == 2) return {};
    return reinterpret_cast<const float2*>(angles)[pair % (head_dim / 2)];
  }
  // Returns a finished sum as linears() would store it and rope_and_append() would read it back.
  __device__ __forceinline__ static float stored_sum(DType type, int part, float sum,
                                                     const KvFaults& faults) {
    const float x = rounded_as(type, sum);
    if (part == 0) return unless_saturated(type, x);
    return unless_saturated(type, x, part == 1 ? KvPart::kKeys : KvPart::kValues, faults);
  }
  // Returns the rotated element r of a pair, where `mine` is element r and `other` the other one.
  __device__ __forceinline__ static float rotated(int part, int r, float2 angle, float mine,
                                                  float other) {
    if (part == 2) return mine;
    const float along = __fmul_rn(mine, angle.x), across = __fmul_rn(other, angle.y);
    return r == 0 ? __fsub_rn(along, across) : __fadd_rn(across, along);
  }
  __device__ __forceinline__ void store(const LinearParams& p, int part, int row, float x) const {
    if (part == 0) return store_as(p.out_type, p.part[0].out, row, x);
    const int token = *position;
    const int32_t block = block_table[token / kKvBlockTokens];
    std::byte* const page = (part == 1 ? kv.k() : kv.v()) + block * block_bytes +
                            static_cast<int64_t>(row / head_dim) * page_bytes;
    reinterpret_cast<__half*>(page)[token % kKvBlockTokens * head_dim + row % head_dim] =
        half_in_page(x, part == 1 ? KvPart::kKeys : KvPart::kValues, faults);
  }
};

// Requires that can_append() is true for the call.
QkvAppend qkv_append(const AppendCall& append);

}  // namespace spillway::cuda
