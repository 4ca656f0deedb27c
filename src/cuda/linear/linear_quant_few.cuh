// SPDX-License-Identifier: Apache-2.0
// The kernel of quant_linear() for up to four tokens: it has as few steps as possible between the
// end of the previous kernel, which computes x, and its own end, since nothing else hides them.
//
// A thread block of eight warps takes one group of 16 outputs after the other, each warp an eighth
// of K. Thread blocks are small: two run on an SM, and two of the next kernel find room beside
// them, fill their rings and wait. When x is there, each warp copies its own part to shared memory
// (no warp waits for another), multiplies weights that have long arrived, and the sums of the eight
// warps are added up once per group.
#pragma once

#include "cuda/kernel/launch.cuh"
#include "cuda/linear/linear_quant_inl.cuh"
#include "cuda/linear/linear_quant_pair.cuh"

namespace spillway::cuda {

// Returns the number of tokens of x in shared memory: three are padded to four.
__host__ __device__ constexpr int few_tokens(int tokens) { return tokens == 3 ? 4 : tokens; }

// Fills in the shared memory offsets, and the rest that follows from tokens, k and stages.
template <class Block>
void complete_few(QuantArgs& a) {
  using Shape = QuantShape<Block>;
  const int tokens = few_tokens(a.tokens);
  a.cluster = 1;
  a.phases = 1;
  a.slices = kQuantSlices;
  a.slices_log2 = 3;
  a.sets = a.gated() ? a.items / 2 : a.items;
  const int slice_blocks = (a.k / Block::kElements + kQuantSlices - 1) / kQuantSlices;
  a.phase_tiles = slice_blocks * TileFormat<Block>::kTiles;
  const int tiles = kQuantSlices * a.phase_tiles + kPairTiles;
  const auto aligned = [](int bytes) { return (bytes + 127) / 128 * 128; };
  QuantShared& at = a.shared;
  at.barriers = kQuantWarps * a.stages * PairFormat<Block>::kChunkBytes;
  at.prepared = at.barriers;
  at.sums = aligned(at.barriers + kQuantWarps * a.stages * 8);
  at.x_sums = at.sums + 2 * (a.gated() ? 2 : 1) * kQuantWarps * tokens * 16 * 4;
  at.x = aligned(at.x_sums + tiles * ((tokens + 1) / 2) * Shape::kXSums * 8);
  at.total = at.x + tiles * tokens * 64;
}

// Tokens of x, each `stride` elements after the previous one, in memory that other thread blocks
// write or in shared memory.
struct FewX {
  const __half* data;
  int64_t stride;
  int tokens;
};

// Stores `tiles` tiles of x from `first` on in shared memory, by one warp, in the order of mma's B,
// [tile][token][t], with the sums that correct the offsets which the operands of A add to codes.
template <class Block, int M, bool kFromShared = false>
__device__ __forceinline__ void stage_few_x(const FewX& source, int first, int tiles, uint4* x,
                                            float* x_sums, int lane) {
  using Format = TileFormat<Block>;
  constexpr int kXSums = QuantShape<Block>::kXSums, kPairs = (M + 1) / 2;
  constexpr int kBatch = 6;  // loads in flight: an eighth of 11008 columns
  const int t = lane % 4, total = tiles * M * 4;
  const __half* from = source.data + first * 32 + (Format::kBits == 8 ? 8 * t : 4 * t);
  const auto load = [](const __half* at) {
    const auto* const four = reinterpret_cast<const uint2*>(at);
    return kFromShared ? *four : __ldcg(four);
  };
#pragma unroll 1
  for (int base = 0; base < total; base += kBatch * 32) {
    uint2 low_x[kBatch], high_x[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int i = base + u * 32 + lane, tile = i / 4 / M, token = i / 4 % M;
      low_x[u] = high_x[u] = {0, 0};
      if (i < total) {
        const __half* row = from + min(token, source.tokens - 1) * source.stride + tile * 32;
        low_x[u] = load(row);
        high_x[u] = load(row + (Format::kBits == 8 ? 4 : 16));
      }
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (base + u * 32 >= total) break;
      const int i = base + u * 32 + lane, tile = i / 4 / M, token = i / 4 % M;
      const uint2 low = low_x[u], high = high_x[u];
      const auto sum4 = [](uint2 v) {
        const float2 p = __half22float2(reinterpret_cast<const __half2&>(v.x));
        const float2 q = __half22float2(reinterpret_cast<const __half2&>(v.y));
        return (p.x + p.y) + (q.x + q.y);
      };
      const float low_sum = -sum4(low), high_sum = -sum4(high);
      float first_sum, second_sum = 0;
      if constexpr (Format::kSplit) {
        first_sum = Format::kLowOffset * low_sum;
        second_sum = Format::kHighOffset * high_sum;
      } else {
        first_sum = fmaf(Format::kLowOffset, low_sum, Format::kHighOffset * high_sum);
        if constexpr (Format::kMinimum) second_sum = -(low_sum + high_sum);
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        first_sum += __shfl_xor_sync(~0U, first_sum, step);
        if constexpr (kXSums == 2) second_sum += __shfl_xor_sync(~0U, second_sum, step);
      }
      if (i >= total) continue;
      if constexpr (Format::kBits == 8) {
        x[i] = {low.x, low.y, high.x, high.y};
      } else {  // (0, 2) and (1, 3)
        x[i] = {__byte_perm(low.x, low.y, 0x5410), __byte_perm(low.x, low.y, 0x7632),
                __byte_perm(high.x, high.y, 0x5410), __byte_perm(high.x, high.y, 0x7632)};
      }
      if (t == 0) {
        float* record = x_sums + (tile * kPairs + token / 2) * 2 * kXSums + token % 2;
        record[0] = first_sum;
        if constexpr (kXSums == 2) record[2] = second_sum;
      }
    }
  }
}

// The sums of a slice of one group, for M tokens or fewer.
template <class Block, int M>
class FewSums {
 public:
  using Format = TileFormat<Block>;
  static constexpr int kSetTiles = kPairTiles / M;  // neighbouring tiles
  static constexpr int kSteps = kSetTiles / 2;
  static constexpr int kValues = M == 1 ? 1 : 2;  // tokens per lane
  static constexpr int kXSums = QuantShape<Block>::kXSums;
  static constexpr int kPairs = (M + 1) / 2;  // pairs of tokens

  // x and x_sums point to this warp's slice.
  __device__ __forceinline__ FewSums(const uint4* x, const float* x_sums, int lane)
      : place_(lane), t_(lane % 4) {
    const int g = lane / 4;
    tile_ = g / M;
    x_ = x + g * 4 + (Format::kBits == 8 ? t_ : t_ % 2 * 2);
    odd_tile_ = tile_ % 2 != 0;
    has_x_ = tile_ % 2 == t_ / 2;
    x_sums_ = x_sums + (M == 4 ? t_ % 2 : 0) * 2 * kXSums;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kValues; ++i) sums_[0][i] = sums_[1][i] = 0;
  }

  // Adds `tiles` tiles from `first_tile` of the slice on; there are kPairTiles of them if kWhole.
  template <bool kWhole>
  __device__ __forceinline__ void add(const uint8_t* chunk, int first_tile, int tiles) {
#pragma unroll
    for (int set = 0; set < M; ++set) {
      const int base = set * kSetTiles;
      if (!kWhole && base >= tiles) return;
      uint32_t b[8];
      // After the last tile begins memory that another warp may still be writing: nothing is read
      // there.
      load_x(first_tile + base, kWhole || base + tile_ < tiles, b);
      // The tiles of this lane's two columns.
      const int tile0 = base + (M == 1 ? 2 * t_ : M == 2 ? t_ : t_ / 2);
      const int tile1 = M == 1 ? tile0 + 1 : tile0;
      const auto record = [&](int tile) {
        return x_sums_ +
               (first_tile + (kWhole ? tile : min(tile, tiles - 1))) * kPairs * 2 * kXSums;
      };
      const float* record0 = record(tile0);
      const float* record1 = M == 1 ? record(tile1) : record0 + 1;
      float d[kSteps][4], e[kSteps][4];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t operands[4][4];
        pair_operands<Block>(chunk, set * kSteps + step, place_, operands);
        const float start[4] = {record0[0], record1[0], record0[0], record1[0]};
        multiply_add(d[step], operands[0], b[0], b[1], start);
        if constexpr (Format::kSplit) {
          const float other[4] = {record0[2], record1[2], record0[2], record1[2]};
          multiply_add(e[step], operands[1], b[2], b[3], other);
          multiply_add(d[step], operands[2], b[4], b[5], d[step]);
          multiply_add(e[step], operands[3], b[6], b[7], e[step]);
        } else {
          multiply_add(d[step], operands[1], b[2], b[3], d[step]);
          multiply_add(d[step], operands[2], b[4], b[5], d[step]);
          multiply_add(d[step], operands[3], b[6], b[7], d[step]);
        }
      }
      const TileScales<float> scales0 = pair_scales<Block>(chunk, tile0, place_.p);
      const TileScales<float> scales1 =
          M == 1 ? pair_scales<Block>(chunk, tile1, place_.p) : scales0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2;
        const TileScales<float>& s = i % 2 == 0 ? scales0 : scales1;
        float& to = sums_[row][M == 1 ? 0 : i % 2];
        float sum = fmaf(s.scale[row], own(d, i), to);
        if constexpr (Format::kSplit) {
          sum = fmaf(s.other[row], own(e, i), sum);
          if constexpr (Format::kMinimum) {
            const float* of_tile = i % 2 == 0 ? record0 : record1;
            sum = fmaf(s.low_minimum[row], of_tile[0], sum);
            sum = fmaf(s.high_minimum[row], of_tile[2], sum);
          }
        } else if constexpr (Format::kMinimum) {
          sum = fmaf(s.other[row], i % 2 == 0 ? record0[2] : record1[2], sum);
        }
        if (kWhole || (i % 2 == 0 ? tile0 : tile1) < tiles) to = sum;
      }
    }
  }

  // Stores the sums as [token][16 rows].
  __device__ __forceinline__ void store(float* to) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        if constexpr (M < 4) sums_[row][i] += __shfl_xor_sync(~0U, sums_[row][i], 1);
        sums_[row][i] += __shfl_xor_sync(~0U, sums_[row][i], 2);
      }
    }
    const int writers = M == 4 ? 2 : 1;
    if (t_ >= writers) return;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int token = 2 * t_ + i;
      *reinterpret_cast<float2*>(to + token * 16 + 2 * place_.p) = {sums_[0][i], sums_[1][i]};
    }
  }

 private:
  // Loads B of the four products of a pair; it is the same for all pairs of a set. `inside`: this
  // lane's tile is one of the slice.
  __device__ __forceinline__ void load_x(int tile, bool inside, uint32_t b[8]) const {
    const uint4* from = x_ + tile * M * 4;
    uint4 first{0, 0, 0, 0}, second{0, 0, 0, 0};
    if constexpr (Format::kBits == 8) {
      if (!inside) {
      } else if (odd_tile_) {
        second = *from;
      } else {
        first = *from;
      }
    } else if (has_x_ && inside) {
      first = from[0];
      second = from[1];
    }
    b[0] = first.x, b[1] = first.y, b[2] = first.z, b[3] = first.w;
    b[4] = second.x, b[5] = second.y, b[6] = second.z, b[7] = second.w;
  }
  // Returns, from the sums of all pairs, those of the pair that this lane's columns belong to.
  __device__ __forceinline__ float own(const float d[kSteps][4], int i) const {
    if constexpr (M == 1) {
      const float low = t_ % 2 == 0 ? d[0][i] : d[1][i], high = t_ % 2 == 0 ? d[2][i] : d[3][i];
      return t_ < 2 ? low : high;
    } else if constexpr (M == 2) {
      return t_ < 2 ? d[0][i] : d[1][i];
    } else {
      return d[0][i];
    }
  }

  PairLane<Block> place_;
  const uint4* x_;
  const float* x_sums_;
  int t_;
  int tile_;  // the tile of the set whose x this lane loads
  bool odd_tile_, has_x_;
  float sums_[2][kValues];  // rows 2p and 2p + 1
};

__device__ __forceinline__ void prefetch_to_l2(const uint8_t* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(from),
               "r"(bytes), "l"(read_once())
               : "memory");
#endif
}

// kResident: the thread blocks that find room on an SM, this kernel's and the next one's.
template <class Block, int M, int kResident>
__global__ void __launch_bounds__(kQuantWarps * 32, kResident)
    quant_linear_few_kernel(const __grid_constant__ QuantArgs a) {
  using Format = TileFormat<Block>;
  using Shape = QuantShape<Block>;
  using Pair = PairFormat<Block>;
  extern __shared__ __align__(128) uint8_t shared[];
  const QuantShared& at = a.shared;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_set = static_cast<int>(blockIdx.x), set_step = static_cast<int>(gridDim.x);
  const int items = a.gated() ? 2 : 1;  // per set
  const int begin = Shape::slice_begin(a, warp), end = Shape::slice_begin(a, warp + 1);
  uint8_t* buffers = shared + warp * a.stages * Pair::kChunkBytes;
  WeightRing ring(reinterpret_cast<uint64_t*>(shared + at.barriers) + warp * a.stages, a.stages,
                  lane);

  const auto locate = [&](int set, int item, int& part, int& group) {
    part = item;
    group = set;
    if (a.gated()) return;
    while (part + 1 < a.count && group >= a.parts[part].groups) group -= a.parts[part++].groups;
  };
  const auto weights = [&](int set, int item) {
    int part, group;
    locate(set, item, part, group);
    return a.parts[part].data + group * a.group_bytes +
           static_cast<int64_t>(begin) * Format::kUnitBytes;
  };
  // The place of the next fetch.
  const int blocks = end - begin;
  int fetch_set = first_set, fetch_item = 0, fetch_left = blocks;
  const uint8_t* fetch_at = weights(first_set, 0);
  const auto fetch = [&](int stage) {
    if (fetch_left > 0) {
      const uint32_t bytes = min(Pair::kChunkBlocks, fetch_left) * Format::kUnitBytes;
      ring.begin(stage, bytes);
      ring.copy(stage, buffers + stage * Pair::kChunkBytes, fetch_at, bytes);
      fetch_at += Pair::kChunkBytes;
      fetch_left -= Pair::kChunkBlocks;
      if (fetch_left <= 0) {
        if (++fetch_item == items) {
          fetch_item = 0;
          fetch_set += set_step;
        }
        if (fetch_set < a.sets) {
          fetch_left = blocks;
          fetch_at = weights(fetch_set, fetch_item);
        }
      }
    }
    ring.end();
  };
#pragma unroll 1
  for (int i = 0; i < a.stages; ++i) fetch(i);
  if (a.l2_sets > 0 && lane == 0 && fetch_left > 0) {
    // Prefetches to L2 what did not fit into the ring.
    prefetch_to_l2(fetch_at, fetch_left * Format::kUnitBytes);
    for (int i = fetch_item + 1; i < a.l2_sets * items; ++i) {
      const int set = fetch_set + i / items * set_step;
      if (set >= a.sets) break;
      prefetch_to_l2(weights(set, i % items), blocks * Format::kUnitBytes);
    }
  }
  if (a.next_start == 1) launch_dependents();
  wait_for_previous();
  if (a.next_start == 2) launch_dependents();

  uint4* x = reinterpret_cast<uint4*>(shared + at.x);
  float* x_sums = reinterpret_cast<float*>(shared + at.x_sums);
  float* sums = reinterpret_cast<float*>(shared + at.sums);
  constexpr int kWarpSums = M * 16;
  x += warp * a.phase_tiles * M * 4;
  x_sums += warp * a.phase_tiles * FewSums<Block, M>::kPairs * 2 * Shape::kXSums;
  stage_few_x<Block, M>({static_cast<const __half*>(a.x), a.x_stride, a.tokens},
                        begin * Format::kTiles, blocks * Format::kTiles, x, x_sums, lane);
  __syncwarp();
  FewSums<Block, M> few(x, x_sums, lane);
  const int row = static_cast<int>(threadIdx.x) % 16, token = static_cast<int>(threadIdx.x) / 16;
  int stage = 0, turn = 0;
  uint32_t parity = 0;
  for (int set = first_set; set < a.sets; set += set_step) {
    float* of_turn = sums + turn * items * kQuantWarps * kWarpSums;
#pragma unroll 1
    for (int item = 0; item < items; ++item) {
      few.clear();
#pragma unroll 1
      for (int block = 0; block < blocks; block += Pair::kChunkBlocks) {
        ring.wait(stage, parity);
        const uint8_t* chunk = buffers + stage * Pair::kChunkBytes;
        if (Pair::kChunkBlocks == 1 || blocks - block >= Pair::kChunkBlocks) {
          few.template add<true>(chunk, block * Format::kTiles, kPairTiles);
        } else {
          few.template add<false>(chunk, block * Format::kTiles, (blocks - block) * Format::kTiles);
        }
        ring.release();
        fetch(stage);
        if (++stage == a.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      few.store(of_turn + (item * kQuantWarps + warp) * kWarpSums);
    }
    if (a.next_start == 3 && set + set_step >= a.sets) launch_dependents();
    // The sums are double-buffered: this barrier also says that all warps have read the previous
    // ones.
    __syncthreads();
    if (token < a.tokens) {
      const auto sum_of = [&](int item) {
        const float* from = of_turn + item * kQuantWarps * kWarpSums + token * 16 + row;
        float sum = 0;
#pragma unroll
        for (int s = 0; s < kQuantSlices; ++s) sum += from[s * kWarpSums];
        return sum;
      };
      const float sum = sum_of(0), up = items == 2 ? sum_of(1) : 0;
      int part, group;
      locate(set, 0, part, group);
      finish_output(a, part, group * 16 + row, token, sum, up);
    }
    turn ^= 1;
  }
}

}  // namespace spillway::cuda
