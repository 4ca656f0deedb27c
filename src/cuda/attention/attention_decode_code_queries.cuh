// SPDX-License-Identifier: Apache-2.0
// Decode attention over int8 and int4 KV (attention_decode_codes.cuh): stores queries in the order
// in which products read them.
#pragma once

#include "cuda/attention/attention_decode_code_shape.cuh"

namespace spillway::cuda {

// Does what rotate_kv() does, bit for bit, to 64 elements of which 16 neighbouring lanes hold four
// each; `lanes` of a warp take part.
__device__ __forceinline__ float4 rotate_fours(float4 v, unsigned lanes) {
  const unsigned lane = threadIdx.x % kWarpSize;
  const float a = v.x + v.y, b = v.x - v.y, c = v.z + v.w, d = v.z - v.w;
  float x[4] = {a + c, b + d, a - c, b - d};
#pragma unroll
  for (unsigned step = 1; step < 16; step *= 2) {
    const float sign = (lane & step) != 0 ? -1.0F : 1.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[i] = fmaf(x[i], sign, __shfl_xor_sync(lanes, x[i], static_cast<int>(step)));
  }
  return make_float4(x[0] * 0.125F, x[1] * 0.125F, x[2] * 0.125F, x[3] * 0.125F);
}

// Stores one query, rotated, where products read it.
template <int kDim, int kBuffers>
__device__ __forceinline__ void stage_rotated(const std::byte* from, DType dtype, int query,
                                              DecodeShared<KvType::kInt4, kDim, kBuffers>& shared) {
  using Shape = DecodeShape<KvType::kInt4, kDim, kBuffers>;
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
#pragma unroll
  for (int first = 0; first < kDim / 4; first += kWarpSize) {
    // With 64 dims, both halves of the warp do the same work.
    const int four = kDim < 128 ? lane & 15 : first + lane;
    float x[4];
    if (dtype == DType::kF16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = load_element(from, DType::kF16, 4 * four + i);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = load_element(from, DType::kBF16, 4 * four + i);
    }
    const float4 y = rotate_fours(make_float4(x[0], x[1], x[2], x[3]), kAllLanes);
    const uint32_t even = pack_half2(clamp_to_half(y.x), clamp_to_half(y.z));
    const uint32_t odd = pack_half2(clamp_to_half(y.y), clamp_to_half(y.w));
    const int group = four >> 4, in_group = four & 15;
    const int high = in_group >> 3;
    const int word = in_group & 7;  // index in the group's 32 bytes
    const int second = group & (Shape::kSetGroups - 1);
    const int t = second * 2 + (Shape::kPieceWords == 4 ? word >> 2 : word >> 1);
    const int product =
        group / Shape::kSetGroups * Shape::kSetProducts + (word & (Shape::kPieceWords - 1)) * 2;
    const int place = high * 2 + second;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto* words = reinterpret_cast<uint32_t*>(&shared.operands[product + i][4 * query + t]);
      words[place] = i == 0 ? even : odd;
      words[place ^ 1] = 0;
    }
    const float2 e = unpack_half2(even), o = unpack_half2(odd);
    float half_sum = (e.x + e.y) + (o.x + o.y);  // of the group's lower half, or of the upper one
#pragma unroll
    for (int step = 1; step < 8; step *= 2) half_sum += __shfl_xor_sync(kAllLanes, half_sum, step);
    const float other = __shfl_xor_sync(kAllLanes, half_sum, 8);
    if (in_group == 0) {
      const float sum = half_sum + other;
      const float upper = __half2float(__float2half_rn(clamp_to_half(sum)));
      shared.query_sums[4 * query + group] = pack_half2(upper, clamp_to_half(sum - upper));
      shared.query_offsets[group][query] = -fmaf(Shape::kBias, half_sum, Shape::kHighBias * other);
    }
  }
  if (lane >= Shape::kGroups && lane < 4) shared.query_sums[4 * query + lane] = 0;
}

// Stores the tile's queries in shared memory: as halves, rotated for int4. If there are fewer than
// 8, the rows of the others keep what was there; results of those rows are not used.
template <KvType kType, int kDim, int kBuffers>
__device__ __forceinline__ void stage_code_queries(const DecodeArgs& a, const PartPlace& p,
                                                   DecodeShared<kType, kDim, kBuffers>& shared) {
  using Shape = DecodeShape<kType, kDim, kBuffers>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll 1
  for (int query = static_cast<int>(threadIdx.x) / kWarpSize; query < p.queries;
       query += Shape::kWarps) {
    const std::byte* from = a.query(p.row, p.first_query + query);
    if constexpr (Shape::kNibbles) {
      stage_rotated(from, a.dtype, query, shared);
    } else {
#pragma unroll
      for (int d = lane; d < Shape::kGroups * 64; d += kWarpSize) {
        const float x = d < kDim ? load_element(from, a.dtype, d) : 0;
        shared.queries[query][d] = __float2half_rn(clamp_to_half(x));
      }
    }
  }
}

}  // namespace spillway::cuda
