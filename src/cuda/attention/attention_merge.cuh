// SPDX-License-Identifier: Apache-2.0
// Merges the partitions of a row, in an order that does not depend on when they were computed or by
// which thread block. The merge is a launch of its own. (The thread blocks that finish last could
// do it and save that launch, but then every thread block waits for its fence and its counter,
// which keeps the next one's loads off the SM: slower.)
//
// A partition leaves, for each query of its tile, a sum of exponentials relative to some maximum
// and the outputs weighted by them: slot = output [queries][head_dim], sum [queries], maximum
// [queries].
#pragma once

#include "cuda/attention/attention_args.cuh"
#include "cuda/kernel/fast_divisor.h"
#include "cuda/kernel/warp_ptx.cuh"

namespace spillway::cuda {

constexpr int kPartTokens = 256;  // rows are split at multiples of this: part of the numerics
// Partitions of quantized rows that see many tokens are 2 or 4 times as long: the work done once
// per partition takes as long as a hundred tokens of int4. So are those of F16 where query heads
// share KV and the step has enough rows: writing and reading the slots of 8 queries takes 3% of the
// time of 256 tokens.
constexpr int kTwoFrom = 512, kFourFrom = 4096;
constexpr int kTileQueries = 8;  // query heads of a kv head that share a thread block
constexpr int kDecodeWarps = 8;
constexpr int kDecodeThreads = kDecodeWarps * kWarpSize;
constexpr int kWarpBlocks = kPartTokens / kDecodeWarps / kKvBlockTokens;  // of a warp's tokens
constexpr int kMostWarpBlocks = 4;

struct DecodeArgs : AttentionArgs {
  int tiles = 0;  // tiles of queries, over all kv heads
  int max_rows = 0;
  int max_partitions = 0;
  FastDivisor by_tiles = {}, by_max_rows = {}, by_max_parts = {}, by_tiles_per_head = {};
  bool whole_rows = false;  // one thread block goes over all partitions: nothing to merge
  bool long_parts = false;  // see part_shift()
  int two_from = kTwoFrom, four_from = kFourFrom;
  int expected = 0;  // an upper bound of the tokens that the longest row sees
  // The unified maximum's range for largest scores, in the unit of scale_log2.
  float low = 0, high = 0;
  float reference = 0;     // with a unified maximum, exponentials are 2^(score - reference)
  float* slots = nullptr;  // [sequences * max_rows][tiles][max_partitions][slot_floats]
  int slot_floats = 0;
};

// Returns s where partitions of a row that sees `seen` tokens have 2^s tokens.
__device__ __forceinline__ int part_shift(const DecodeArgs& a, int seen) {
  constexpr int kShift = 8;
  static_assert(1 << kShift == kPartTokens);
  return kShift + (a.long_parts ? (seen > a.two_from) + (seen > a.four_from) : 0);
}

// The work of a thread block.
struct PartPlace {
  int sequence;
  int64_t row;  // of q and out
  int kv_head;
  int first_query;  // index of the first query head
  int queries;
  int start;       // of the sequence's rows in this step: KV before it is from earlier steps
  int begin, end;  // positions seen by the row: [begin, end)
  int first_part;  // the partition that holds `begin`
  int parts;       // of the row
  int part;        // 0 to parts - 1
  int64_t tile_index;
  int32_t blocks[kMostWarpBlocks];  // KV blocks of this warp's tokens, up to the row's end
};

// Finds the work where partitions have kPartTokens. Returns false for a surplus thread block.
__device__ __forceinline__ bool find_place(const DecodeArgs& a, PartPlace& p) {
  unsigned rest = blockIdx.x;
  const int tile = static_cast<int>(rest % a.tiles);
  rest /= a.tiles;
  p.part = static_cast<int>(rest % a.max_partitions);
  rest /= a.max_partitions;
  const int sequence_row = static_cast<int>(rest);
  p.sequence = sequence_row / a.max_rows;
  const int r = sequence_row % a.max_rows;
  // These loads are in flight together with those of the lengths, unless a window's begin depends
  // on the lengths.
  const int32_t* table = a.row_of(a.batch.block_table, p.sequence);
  const int warp_block = static_cast<int>(threadIdx.x) / kWarpSize * kWarpBlocks;
  const int early = p.part * (kPartTokens / kKvBlockTokens) + warp_block;
#pragma unroll
  for (int i = 0; i < kWarpBlocks; ++i)
    p.blocks[i] = a.window == 0 && early + i < a.batch.table_stride ? table[early + i] : 0;
  const int rows = a.batch.rows[p.sequence];
  if (r >= rows) return false;
  p.start = a.batch.start[p.sequence];
  p.end = a.end_of(p.sequence, p.start + r);
  p.begin = a.begin_of(p.start + r);
  p.first_part = p.begin / kPartTokens;
  p.parts = (p.end + kPartTokens - 1) / kPartTokens - p.first_part;
  if (p.part >= p.parts) return false;
  if (a.window > 0) {
    const int block = (p.first_part + p.part) * (kPartTokens / kKvBlockTokens) + warp_block;
#pragma unroll
    for (int i = 0; i < kWarpBlocks; ++i)
      p.blocks[i] = (block + i) * kKvBlockTokens < p.end ? table[block + i] : 0;
  }
  p.row = a.batch.first_row[p.sequence] + r;
  const int tiles_per_head = a.tiles / a.kv_heads;
  p.kv_head = tile / tiles_per_head;
  const int first = tile % tiles_per_head * kTileQueries;
  p.first_query = p.kv_head * a.group + first;
  p.queries = min(kTileQueries, a.group - first);
  p.tile_index = static_cast<int64_t>(sequence_row) * a.tiles + tile;
  return true;
}

// The results of the partitions of one query head of one row: the pointers are into the first
// partition's slot, from which the others are slot_floats apart.
struct RowParts {
  int parts = 0;  // see nothing_to_merge()
  int64_t row;
  const float *outputs, *sums, *references;

  __device__ __forceinline__ RowParts(const DecodeArgs& a, int sequence, int r, int head) {
    const int rows = a.batch.rows[sequence], position = a.batch.start[sequence] + r;
    row = a.batch.first_row[sequence] + r;
    const int end = a.end_of(sequence, position), begin = a.begin_of(position);
    const int shift = part_shift(a, end - begin);
    if (r < rows) parts = ((end - 1) >> shift) + 1 - (begin >> shift);
    const int in_group = head % a.group, tile_in_head = in_group / kTileQueries;
    const int tile = head / a.group * (a.tiles / a.kv_heads) + tile_in_head;
    const int query = in_group % kTileQueries;
    const int queries = min(kTileQueries, a.group - tile_in_head * kTileQueries);
    const int64_t tile_index = (int64_t{sequence} * a.max_rows + r) * a.tiles + tile;
    const int dim = a.shape.head_dim;
    const float* const slot = a.slots + tile_index * a.max_partitions * a.slot_floats;
    outputs = slot + query * dim;
    sums = slot + queries * dim + query;
    references = slot + queries * (dim + 1) + query;
  }
  // A single partition has written its result to out already.
  __device__ __forceinline__ bool nothing_to_merge(const DecodeArgs& a) const {
    return parts <= (a.sums == nullptr ? 1 : 0);
  }
};

// The softmax state of a head of a row before the call's partitions are merged into it
// (SoftmaxState).
struct SumsBefore {
  float *outputs = nullptr, *maximum = nullptr;
  float old_maximum = 0, old_sum = 0;

  SumsBefore() = default;
  __device__ __forceinline__ SumsBefore(const DecodeArgs& a, int64_t row, int head) {
    outputs = a.sums_row(row) + head * a.shape.head_dim;
    maximum = a.sums_row(row) + a.heads() * a.shape.head_dim + head;
    old_maximum = *maximum;
    old_sum = maximum[a.heads()];
  }
  __device__ __forceinline__ float top(float reference) const {
    const float own = reference * kLn2;
    return old_sum == 0 ? own : fmaxf(old_maximum, own);
  }
  // Returns the weights of the old state and of the new result, which is relative to 2^reference.
  __device__ __forceinline__ float2 weights(float reference) const {
    const float own = reference * kLn2, highest = top(reference);
    return make_float2(old_sum == 0 ? 0 : exp2_fast((old_maximum - highest) * kLog2E),
                       own == highest ? 1 : exp2_fast((own - highest) * kLog2E));
  }
  // Called by one thread when all have read the old state.
  __device__ __forceinline__ void add(const DecodeArgs& a, float reference, float sum) const {
    const float2 weight = weights(reference);
    *maximum = top(reference);
    maximum[a.heads()] = fmaf(old_sum, weight.x, sum * weight.y);
  }
};

// Does the same as merge_row() where no row has more than kDecodeWarps partitions, with the same
// bits: a warp per query head of a row issues all its loads together.
__device__ __forceinline__ void merge_few(const DecodeArgs& a) {
  const int heads = a.kv_heads * a.group;
  const int index = static_cast<int>(blockIdx.x * kDecodeWarps + threadIdx.x / kWarpSize);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int head = index % heads, sequence_row = index / heads;
  const int sequence = sequence_row / a.max_rows, r = sequence_row % a.max_rows;
  if (sequence >= a.batch.sequences) return;
  const RowParts p(a, sequence, r, head);
  if (p.nothing_to_merge(a)) return;
  const int dim = a.shape.head_dim, fours = dim / 4;
  float reference[kDecodeWarps], sum[kDecodeWarps];
#pragma unroll
  for (int part = 0; part < kDecodeWarps; ++part) {
    const int64_t at = int64_t{part} * a.slot_floats;
    const bool exists = part < p.parts;
    reference[part] = exists ? __ldcg(p.references + at) : -INFINITY;
    sum[part] = exists ? __ldcg(p.sums + at) : 0;
  }
  SumsBefore before;
  if (a.sums != nullptr) before = SumsBefore(a, p.row, head);
  float highest, all;
  for (int four = lane; four < fours; four += kWarpSize) {
    float4 x[kDecodeWarps];
#pragma unroll
    for (int part = 0; part < kDecodeWarps; ++part) {
      const float* const out = p.outputs + int64_t{part} * a.slot_floats;
      x[part] = part < p.parts ? __ldcg(reinterpret_cast<const float4*>(out) + four)
                               : make_float4(0, 0, 0, 0);
    }
    highest = -INFINITY;
#pragma unroll
    for (int part = 0; part < kDecodeWarps; ++part) highest = fmaxf(highest, reference[part]);
    all = 0;
    float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int part = 0; part < kDecodeWarps; ++part) {
      if (part >= p.parts) break;
      const float own = reference[part];
      const float weight = own == highest ? 1 : exp2_fast(own - highest);
      all = __fadd_rn(all, __fmul_rn(sum[part], weight));
      out.x = __fadd_rn(out.x, __fmul_rn(x[part].x, weight));
      out.y = __fadd_rn(out.y, __fmul_rn(x[part].y, weight));
      out.z = __fadd_rn(out.z, __fmul_rn(x[part].z, weight));
      out.w = __fadd_rn(out.w, __fmul_rn(x[part].w, weight));
    }
    if (a.sums != nullptr) {
      const float2 weight = before.weights(highest);
      float4* const to = reinterpret_cast<float4*>(before.outputs) + four;
      const float4 old = *to;
      *to = make_float4(
          fmaf(old.x, weight.x, out.x * weight.y), fmaf(old.y, weight.x, out.y * weight.y),
          fmaf(old.z, weight.x, out.z * weight.y), fmaf(old.w, weight.x, out.w * weight.y));
      continue;
    }
    std::byte* const to = a.output(p.row, head);
    store_element(to, a.dtype, 4 * four, out.x / all);
    store_element(to, a.dtype, 4 * four + 1, out.y / all);
    store_element(to, a.dtype, 4 * four + 2, out.z / all);
    store_element(to, a.dtype, 4 * four + 3, out.w / all);
  }
  if (a.sums != nullptr) {
    __syncwarp();  // all lanes have read the old state
    if (lane == 0) before.add(a, highest, all);
  }
}

// Merges one query head of one row per thread block: its warps take partitions round-robin, and
// their results are added up in warp order.
__device__ __forceinline__ void merge_row(const DecodeArgs& a) {
  __shared__ float4 outs[kDecodeWarps][64];
  __shared__ float sums[kDecodeWarps];
  const int heads = a.kv_heads * a.group;
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int sequence_row = static_cast<int>(blockIdx.x) / heads;
  const int sequence = sequence_row / a.max_rows, r = sequence_row % a.max_rows;
  const RowParts p(a, sequence, r, head);
  if (p.nothing_to_merge(a)) return;
  const int dim = a.shape.head_dim, fours = dim / 4;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;

  float reference = -INFINITY;
  for (int part = lane; part < p.parts; part += kWarpSize)
    reference = fmaxf(reference, __ldcg(p.references + int64_t{part} * a.slot_floats));
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    reference = fmaxf(reference, __shfl_xor_sync(kAllLanes, reference, step));

  float sum = 0;
  float4 out[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
#pragma unroll 4
  for (int part = warp; part < p.parts; part += kDecodeWarps) {
    const int64_t at = int64_t{part} * a.slot_floats;
    const float own = __ldcg(p.references + at);
    const float weight = own == reference ? 1 : exp2_fast(own - reference);
    sum = fmaf(__ldcg(p.sums + at), weight, sum);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int four = lane + n * kWarpSize;
      if (four >= fours) break;
      const float4 x = __ldcg(reinterpret_cast<const float4*>(p.outputs + at) + four);
      out[n].x = fmaf(x.x, weight, out[n].x);
      out[n].y = fmaf(x.y, weight, out[n].y);
      out[n].z = fmaf(x.z, weight, out[n].z);
      out[n].w = fmaf(x.w, weight, out[n].w);
    }
  }
  if (lane == 0) sums[warp] = sum;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int four = lane + n * kWarpSize;
    if (four < fours) outs[warp][four] = out[n];
  }
  __syncthreads();
  const int d = static_cast<int>(threadIdx.x);
  float x = 0, all = 0;
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    if (d < dim) x += reinterpret_cast<const float*>(outs[w])[d];
    all += sums[w];
  }
  if (a.sums != nullptr) {
    const SumsBefore before(a, p.row, head);
    const float2 weight = before.weights(reference);
    if (d < dim) before.outputs[d] = fmaf(before.outputs[d], weight.x, x * weight.y);
    __syncthreads();  // all threads have read the old state
    if (d == 0) before.add(a, reference, all);
    return;
  }
  if (d >= dim) return;
  store_element(a.output(p.row, head), a.dtype, d, x / all);
}

}  // namespace spillway::cuda
