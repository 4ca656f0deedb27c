// SPDX-License-Identifier: Apache-2.0
// What becomes of the sums of q, k and v of one token: rotated, and k and v stored in their F16
// pages, by the kernel that has computed them. Bit for bit what linears() and rope_and_append()
// leave there, so that it does not matter which of them a sequence gets.
#pragma once

#include "cuda/kv/kv_append.h"
#include "cuda/kv/kv_faults.cuh"
#include "cuda/linear/linear_params.cuh"
#include "tensor/kv_format.h"

namespace spillway::cuda {

// Parts of the call are q, k and v. A kernel has both rows of a pair that rope rotates.
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

  // The first or second (r) row of pair `pair` of a part.
  __device__ __forceinline__ int row_of(int part, int pair, int r) const {
    if (part == 2 || interleaved) return 2 * pair + r;
    const int half = head_dim / 2;
    return pair / half * head_dim + pair % half + r * half;
  }
  // A pair's cosine and sine.
  __device__ __forceinline__ float2 angle_of(int part, int pair) const {
    if (part == 2) return {};
    return reinterpret_cast<const float2*>(angles)[pair % (head_dim / 2)];
  }
  // A finished sum as linears() would store it, and rope_and_append() read it again.
  __device__ __forceinline__ static float stored_sum(DType type, int part, float sum,
                                                     const KvFaults& faults) {
    const float x = rounded_as(type, sum);
    if (part == 0) return unless_saturated(type, x);
    return unless_saturated(type, x, part == 1 ? KvPart::kKeys : KvPart::kValues, faults);
  }
  // The first or second element of a pair, which are `mine` and `other`, or the other way round.
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

// Of a call that can_append().
QkvAppend qkv_append(const AppendCall& append);

}  // namespace spillway::cuda
