// SPDX-License-Identifier: Apache-2.0
// Finds the tokens of a decode attention thread block where rows that see many tokens have longer
// partitions.
#pragma once

#include "cuda/attention/attention_merge.cuh"

namespace spillway::cuda {

// The work of a thread block whose partition may be long.
struct LongPartPlace : PartPlace {
  int first, last;  // positions of the partition: [first, last), cut at the row's end
};

// Looks up kBlocks block table entries per lane, the first of them entry `own` of the partition.
// Returns false for a surplus thread block.
template <int kBlocks>
__device__ __forceinline__ bool find_place(const DecodeArgs& a, LongPartPlace& p, int own) {
  static_assert(kBlocks <= kMostWarpBlocks);
  unsigned tile, part, r;
  const unsigned part_index = a.by_tiles.divide(blockIdx.x, tile);
  const auto sequence_row = static_cast<int>(a.by_max_parts.divide(part_index, part));
  p.sequence = static_cast<int>(a.by_max_rows.divide(static_cast<unsigned>(sequence_row), r));
  p.part = static_cast<int>(part);
  // These loads are in flight together with those of the lengths; they are right if the expected
  // lengths are.
  const int32_t* table = a.row_of(a.batch.block_table, p.sequence);
  const int expected = part_shift(a, a.expected);
  const int early = (p.part << expected) / kKvBlockTokens + own;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i)
    p.blocks[i] = a.window == 0 && early + i < a.batch.table_stride ? table[early + i] : 0;
  const int rows = a.batch.rows[p.sequence];
  if (static_cast<int>(r) >= rows) return false;
  p.start = a.batch.start[p.sequence];
  p.end = a.end_of(p.sequence, p.start + static_cast<int>(r));
  p.begin = a.begin_of(p.start + static_cast<int>(r));
  const int shift = part_shift(a, p.end - p.begin);
  p.first_part = p.begin >> shift;
  p.parts = ((p.end - 1) >> shift) + 1 - p.first_part;
  if (p.part >= p.parts) return false;
  p.first = (p.first_part + p.part) << shift;
  p.last = min(p.first + (1 << shift), p.end);
  if (a.window > 0 || shift != expected) {
    const int block = p.first / kKvBlockTokens + own;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      p.blocks[i] = (block + i) * kKvBlockTokens < p.end ? table[block + i] : 0;
  }
  p.row = a.batch.first_row[p.sequence] + static_cast<int>(r);
  unsigned in_head;
  p.kv_head = static_cast<int>(a.by_tiles_per_head.divide(tile, in_head));
  const int first = static_cast<int>(in_head) * kTileQueries;
  p.first_query = p.kv_head * a.group + first;
  p.queries = min(kTileQueries, a.group - first);
  p.tile_index = static_cast<int64_t>(sequence_row) * a.tiles + static_cast<int>(tile);
  return true;
}

}  // namespace spillway::cuda
