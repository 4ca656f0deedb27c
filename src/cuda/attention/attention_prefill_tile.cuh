// SPDX-License-Identifier: Apache-2.0
// Code that prefill kernels share: their arguments, the rows of a thread block, and how queries are
// loaded.
#pragma once

#include "cuda/attention/attention_args.cuh"
#include "cuda/attention/attention_elements.cuh"
#include "cuda/kernel/warp_ptx.cuh"

namespace spillway::cuda {

constexpr int kTileTokens = 64;
constexpr int kTileBlocks = kTileTokens / kKvBlockTokens;

// Arguments for queries of F16 or BF16.
struct PrefillArgs : AttentionArgs {
  bool whole_vectors = false;  // rows of q and out start at multiples of 16 bytes
};

// The rows of a thread block: [first_row, first_row + rows) of q and out, at positions from
// `position` on, which attend to positions [begin, end) or fewer. If the KV is a partition that
// ends before these rows, `end` is a multiple of 256.
struct PrefillPlace {
  int64_t first_row;
  int rows;
  int position;
  int begin, end;
  int head, kv_head;
  const int32_t* table;
};

// Finds the rows of a tile; returns false if the sequence has no rows there.
__device__ __forceinline__ bool place_rows(const PrefillArgs& a, int tile_rows, int tile,
                                           int sequence, int head, PrefillPlace& p) {
  const int first = tile * tile_rows;
  const int rows = a.batch.rows[sequence];
  if (first >= rows) return false;
  p.rows = min(tile_rows, rows - first);
  p.first_row = a.batch.first_row[sequence] + first;
  p.position = a.batch.start[sequence] + first;
  p.begin = a.begin_of(p.position);
  p.end = a.end_of(sequence, p.position + p.rows - 1);
  if (p.begin >= p.end) return false;  // these rows see nothing of the KV partition
  p.head = head;
  p.kv_head = head / a.group;
  p.table = a.row_of(a.batch.block_table, sequence);
  return true;
}

// The grid is (heads, sequences, tiles of rows). Later tiles have more work and start first.
__device__ __forceinline__ bool find_place(const PrefillArgs& a, int tile_rows, PrefillPlace& p) {
  return place_rows(a, tile_rows, static_cast<int>(gridDim.z - 1 - blockIdx.z),
                    static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x), p);
}

// Converts a pair of BF16 elements to F16, saturating.
__device__ __forceinline__ uint32_t bf16_pair_to_half2(uint32_t x) {
  return pack_half2(clamp_to_half(__uint_as_float(x << 16)),
                    clamp_to_half(__uint_as_float(x & 0xffff0000U)));
}

__device__ __forceinline__ uint32_t half2_to_bf16_pair(uint32_t x) {
  const float2 pair = unpack_half2(x);
  return pack_bf16(pair.x, pair.y);
}

// Loads 8 elements of a row of q, from `dim` on, in the type that is multiplied with this KV type.
template <KvType kType>
__device__ __forceinline__ uint4 load_query8(const PrefillArgs& a, const std::byte* row, int dim) {
  using Elements = MmaElements<kType>;
  if (a.whole_vectors) {
    uint4 x = *reinterpret_cast<const uint4*>(row + 2 * dim);
    if (Elements::kBf16 != (a.dtype == DType::kBF16)) {
      const auto change = [](uint32_t pair) {
        return Elements::kBf16 ? half2_to_bf16_pair(pair) : bf16_pair_to_half2(pair);
      };
      x = make_uint4(change(x.x), change(x.y), change(x.z), change(x.w));
    }
    return x;
  }
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = load_element(row, a.dtype, dim + i);
  return make_uint4(Elements::query2(x[0], x[1]), Elements::query2(x[2], x[3]),
                    Elements::query2(x[4], x[5]), Elements::query2(x[6], x[7]));
}

__device__ __forceinline__ uint32_t pack_output2(const PrefillArgs& a, float low, float high) {
  if (a.dtype == DType::kF16) return pack_half2(clamp_to_half(low), clamp_to_half(high));
  return pack_bf16(low, high);
}

}  // namespace spillway::cuda
