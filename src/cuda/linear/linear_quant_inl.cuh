// SPDX-License-Identifier: Apache-2.0
// The kernel of quant_linear() over packed groups of 16 rows.
//
// K is cut into eight slices of whole quantization blocks. A thread block of eight warps has 1, 2,
// 4 or 8 of them (a cluster of thread blocks has all), and as many pairs of groups as that leaves
// warps: with few tokens all warps of a thread block share two groups, and all of x lies in its
// shared memory; with many tokens a cluster of eight thread blocks shares sixteen groups, and each
// holds an eighth of x. A warp streams its slice of two groups after another two, through a ring of
// its own, so that no warp waits for another until sums are added up: in shared memory, across the
// cluster, in the order of the slices.
//
// The first buffers are in flight before the kernel waits for the previous one.
#pragma once

#include <algorithm>

#include "cuda/kernel/launch.cuh"
#include "cuda/linear/linear_quant_args.h"
#include "cuda/linear/linear_quant_epilogue.cuh"
#include "cuda/linear/linear_quant_scales.cuh"
#include "cuda/linear/linear_quant_tile.cuh"
#include "cuda/linear/weight_ring.cuh"

namespace spillway::cuda {

// Sums are stored as [token][16 rows], 20 apart so that a warp's stores use no bank twice.
inline constexpr int kQuantSumStride = 20;

// Returns whether weights are scaled, once per tile, or the sums of a tile, once per eight tokens:
// see linear_quant_tile.cuh.
inline constexpr bool scales_weights(int token_tiles) { return token_tiles > 2; }

template <class Block>
struct QuantShape {
  using Format = TileFormat<Block>;
  // Returns the quantization blocks per buffer: 256 columns, 128 of 8-bit types; half as many where
  // there is more work per column and x fills the shared memory.
  __host__ __device__ static constexpr int chunk_blocks(int token_tiles) {
    const int columns = (Format::kBits == 8 ? 128 : 256) / (token_tiles > 2 ? 2 : 1);
    return columns > Block::kElements ? columns / Block::kElements : 1;
  }
  __host__ __device__ static constexpr int stage_bytes(int token_tiles) {
    return kQuantWarpGroups * chunk_blocks(token_tiles) * Format::kUnitBytes;
  }
  // Sums of x per tile and token: one corrects the offsets; types with minima or two scales need a
  // second.
  static constexpr int kXSums = Format::kMinimum || Format::kSplit ? 2 : 1;
  __host__ __device__ static constexpr int x_sums(int token_tiles) {
    return scales_weights(token_tiles) ? 0 : kXSums;
  }

  // Small sums are double-buffered by set: one barrier per set instead of two.
  __host__ __device__ static constexpr int sum_buffers(int token_tiles) {
    return token_tiles == 1 ? 2 : 1;
  }
  // Returns the number of tokens of x in shared memory: padded if there are several tiles of eight,
  // so that addresses are constants; not padded if there is one tile.
  __host__ __device__ static constexpr int padded(int tokens, int token_tiles) {
    return token_tiles == 1 ? tokens : token_tiles * 8;
  }
  __host__ __device__ static int slice_begin(const QuantArgs& a, int s) {
    return static_cast<int>(static_cast<int64_t>(a.k / Block::kElements) * s / kQuantSlices);
  }
  // Fills in what follows from cluster, stages and phases.
  static void complete(QuantArgs& a, int token_tiles) {
    const auto log2 = [](int v) { return v == 8 ? 3 : v == 4 ? 2 : v == 2 ? 1 : 0; };
    static_assert(kQuantSlices == 8 && kQuantWarps == 8 && kQuantWarpGroups == 2);
    a.slices = kQuantSlices / a.cluster;
    a.slices_log2 = log2(a.slices);
    a.set_items_log2 = log2(kQuantWarps / a.slices) + 1;
    a.sets = (a.items + (1 << a.set_items_log2) - 1) >> a.set_items_log2;
    const int slice_blocks = (a.k / Block::kElements + kQuantSlices - 1) / kQuantSlices;
    a.phase_tiles = (slice_blocks + a.phases - 1) / a.phases * Format::kTiles;
    a.tokens_inverse = static_cast<uint32_t>(((uint64_t{1} << 32) + a.tokens - 1) / a.tokens);
    const int tokens = padded(a.tokens, token_tiles), tiles = a.slices * a.phase_tiles;
    QuantShared& at = a.shared;
    at.barriers = kQuantWarps * a.stages * stage_bytes(token_tiles);
    at.prepared = (at.barriers + kQuantWarps * a.stages * 8 + 127) / 128 * 128;
    at.sums = at.prepared + kQuantWarps * kQuantWarpGroups * Format::kPreparedValues * 4;
    at.x_sums = at.sums + sum_buffers(token_tiles) * kQuantWarps * kQuantWarpGroups * a.tokens *
                              kQuantSumStride * 4;
    at.x = (at.x_sums + tiles * ((tokens + 1) / 2) * x_sums(token_tiles) * 8 + 15) / 16 * 16;
    at.total = at.x + tiles * tokens * 64;
  }
};

// The two halves of a barrier of the cluster (of the thread block if the cluster has only one).
__device__ __forceinline__ void arrive_at_barrier(int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_at_barrier(int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}
__device__ __forceinline__ void block_barrier(int cluster) {
  arrive_at_barrier(cluster);
  wait_at_barrier(cluster);
}

// Loads four floats from the shared memory of thread block `rank` of this cluster.
__device__ __forceinline__ float4 load_shared_of(const float* own, int rank, int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    uint32_t address;
    float4 value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(shared_address(own)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
  }
#endif
  return *reinterpret_cast<const float4*>(own);
}

// Finds the part and the group in it that an item stands for.
__device__ __forceinline__ void locate_item(const QuantArgs& a, int item, int& part, int& group) {
  if (a.gated()) {
    part = item % 2;
    group = item / 2;
    return;
  }
  part = 0;
  group = item;
  while (part + 1 < a.count && group >= a.parts[part].groups) group -= a.parts[part++].groups;
}

// Returns where the columns of phase `phase` of a slice [begin, end) start, in quantization blocks.
template <class Block>
__device__ __forceinline__ int phase_begin(const QuantArgs& a, int begin, int end, int phase) {
  if (a.phases == 1) return phase == 0 ? begin : end;
  return min(end, begin + phase * (a.phase_tiles / TileFormat<Block>::kTiles));
}

// Stores x of this thread block's columns in shared memory in the order of mma's B,
// [slice][tile][token][t], with the sums that correct the offsets which the operands of A add to
// codes.
template <class Block, int kTokenTiles>
__device__ __forceinline__ void stage_x(const QuantArgs& a, int rank, int phase, uint4* x,
                                        float* x_sums) {
  using Format = TileFormat<Block>;
  using Shape = QuantShape<Block>;
  constexpr int kXSums = Shape::x_sums(kTokenTiles);
  const int padded = Shape::padded(a.tokens, kTokenTiles), pairs = (padded + 1) / 2;
  // Warps store the slice that they read (with eight slices each its own, with one all together).
  const int j = static_cast<int>(threadIdx.x) / 32 & (a.slices - 1);
  const int threads = kQuantWarps * 32 >> a.slices_log2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int thread = (static_cast<int>(threadIdx.x) / 32 >> a.slices_log2) * 32 + lane;
  const int slice = rank * a.slices + j;
  const int begin = Shape::slice_begin(a, slice), end = Shape::slice_begin(a, slice + 1);
  const int first = phase_begin<Block>(a, begin, end, phase) * Format::kTiles;
  const int tiles = phase_begin<Block>(a, begin, end, phase + 1) * Format::kTiles - first;
  const __half* from = static_cast<const __half*>(a.x) + first * 32;
  uint4* x_to = x + j * a.phase_tiles * padded * 4;
  float* sums_to = x_sums + j * a.phase_tiles * pairs * 2 * kXSums;
  const int total = tiles * a.tokens * 4;
  constexpr int kBatch = 4;  // loads in flight: x comes from L2
  for (int base = thread; base - lane < total; base += kBatch * threads) {
    uint2 low_x[kBatch], high_x[kBatch];
    int tile[kBatch], token[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int i = base + u * threads, at = i / 4, t = i % 4;
      tile[u] = a.tokens == 1 ? at : static_cast<int>(__umulhi(at, a.tokens_inverse));
      token[u] = at - tile[u] * a.tokens;
      low_x[u] = high_x[u] = {0, 0};
      if (i < total) {
        const __half* row = from + token[u] * a.x_stride + tile[u] * 32;
        const int low = Format::kBits == 8 ? 8 * t : 4 * t;
        low_x[u] = __ldcg(reinterpret_cast<const uint2*>(row + low));
        high_x[u] =
            __ldcg(reinterpret_cast<const uint2*>(row + low + (Format::kBits == 8 ? 4 : 16)));
      }
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const uint2 low = low_x[u], high = high_x[u];
      float low_sum = 0, high_sum = 0;
      if constexpr (kXSums > 0) {
        const auto sum4 = [](uint2 v) {
          const float2 p = __half22float2(reinterpret_cast<const __half2&>(v.x));
          const float2 q = __half22float2(reinterpret_cast<const __half2&>(v.y));
          return (p.x + p.y) + (q.x + q.y);
        };
        low_sum = sum4(low), high_sum = sum4(high);
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
          low_sum += __shfl_xor_sync(~0U, low_sum, step);
          high_sum += __shfl_xor_sync(~0U, high_sum, step);
        }
      }
      const int i = base + u * threads;
      if (i >= total) continue;
      uint4& to = x_to[(tile[u] * padded + token[u]) * 4 + i % 4];
      if constexpr (Format::kBits == 8) {
        to = {low.x, low.y, high.x, high.y};
      } else {  // (0, 2) and (1, 3)
        to = {__byte_perm(low.x, low.y, 0x5410), __byte_perm(low.x, low.y, 0x7632),
              __byte_perm(high.x, high.y, 0x5410), __byte_perm(high.x, high.y, 0x7632)};
      }
      if (kXSums > 0 && i % 4 == 0) {
        float* record = sums_to + (tile[u] * pairs + token[u] / 2) * 2 * kXSums + token[u] % 2;
        low_sum = -low_sum, high_sum = -high_sum;
        if constexpr (Format::kSplit) {
          record[0] = Format::kLowOffset * low_sum;
          record[2] = Format::kHighOffset * high_sum;
        } else {
          record[0] = fmaf(Format::kLowOffset, low_sum, Format::kHighOffset * high_sum);
          if constexpr (Format::kMinimum) record[2] = -(low_sum + high_sum);
        }
      }
    }
  }
}

template <class Block, int kTokenTiles>
class QuantAccumulator {
 public:
  using Format = TileFormat<Block>;
  static constexpr int kGroups = kQuantWarpGroups;
  static constexpr int kXSums = QuantShape<Block>::x_sums(kTokenTiles);
  static constexpr bool kScalesWeights = scales_weights(kTokenTiles);
  // The type of the scales of weights or of sums.
  using Scale = std::conditional_t<kScalesWeights, __half2, float>;

  // x and x_sums point to this warp's slice.
  __device__ __forceinline__ QuantAccumulator(const QuantArgs& a, const uint4* x,
                                              const float* x_sums, int lane)
      : tokens_(a.tokens) {
    const int g = lane / 4, t = lane % 4;
    // With one tile, lanes beyond the last token read its values again: no padding, and no bank
    // conflicts. With several tiles x is padded, and what is in the padding does not reach other
    // tokens.
    const int pairs = (a.tokens + 1) / 2;
    x_stride_ = kTokenTiles == 1 ? a.tokens * 4 : kTokenTiles * 32;
    pair_stride_ = kTokenTiles == 1 ? pairs : kTokenTiles * 4;
    x_ = x + (kTokenTiles == 1 ? min(g, a.tokens - 1) : g) * 4 + t;
    x_sums_ = x_sums + (kTokenTiles == 1 ? min(t, pairs - 1) : t) * 2 * kXSums;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < kGroups; ++r) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[r][n][i] = 0;
      }
    }
  }

  // Adds tile `tile` (of this thread block's columns) of both groups.
  __device__ __forceinline__ void add(int tile, TileOperands a[kGroups],
                                      const TileScales<Scale> s[kGroups]) {
    if constexpr (kScalesWeights) {
#pragma unroll
      for (int r = 0; r < kGroups; ++r) scale_operands<Block>(a[r], s[r]);
    }
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int x_stride = kTokenTiles == 1 ? x_stride_ : kTokenTiles * 32;
      const uint4 b = x_[tile * x_stride + n * 32];
      if constexpr (kScalesWeights) {
#pragma unroll
        for (int r = 0; r < kGroups; ++r) {
          multiply_add(sums_[r][n], a[r].low, b.x, b.y, sums_[r][n]);
          multiply_add(sums_[r][n], a[r].high, b.z, b.w, sums_[r][n]);
        }
      } else {
        add_scaled(tile, n, b, a, s);
      }
    }
  }

  // Stores the sums as [group][token][kQuantSumStride].
  __device__ __forceinline__ void store(float* to, int lane) const {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < kGroups; ++r) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = n * 8 + 2 * t + i % 2, row = g + i / 2 * 8;
          if (token < tokens_) {
            to[(r * tokens_ + token) * kQuantSumStride + row] = sums_[r][n][i];
          }
        }
      }
    }
  }

 private:
  // Adds eight tokens of a tile: sums of codes, which are then scaled.
  __device__ __forceinline__ void add_scaled(int tile, int n, uint4 b,
                                             const TileOperands a[kGroups],
                                             const TileScales<float> s[kGroups]) {
    const int pair_stride = kTokenTiles == 1 ? pair_stride_ : kTokenTiles * 4;
    const float* record = x_sums_ + (tile * pair_stride + n * 4) * 2 * kXSums;
    if constexpr (Format::kSplit) {
      const float4 start = *reinterpret_cast<const float4*>(record);
      const float low[4] = {start.x, start.y, start.x, start.y};
      const float high[4] = {start.z, start.w, start.z, start.w};
#pragma unroll
      for (int r = 0; r < kGroups; ++r) {
        float d[4], e[4];
        multiply_add(d, a[r].low, b.x, b.y, low);
        multiply_add(e, a[r].high, b.z, b.w, high);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums_[r][n][i] = fmaf(s[r].scale[i / 2], d[i], sums_[r][n][i]);
          sums_[r][n][i] = fmaf(s[r].other[i / 2], e[i], sums_[r][n][i]);
          if constexpr (Format::kMinimum) {
            sums_[r][n][i] = fmaf(s[r].low_minimum[i / 2], low[i], sums_[r][n][i]);
            sums_[r][n][i] = fmaf(s[r].high_minimum[i / 2], high[i], sums_[r][n][i]);
          }
        }
      }
    } else {
      float2 first, x_sum{0, 0};
      if constexpr (Format::kMinimum) {
        const float4 both = *reinterpret_cast<const float4*>(record);
        first = {both.x, both.y};
        x_sum = {both.z, both.w};
      } else {
        first = *reinterpret_cast<const float2*>(record);
      }
      const float start[4] = {first.x, first.y, first.x, first.y};
#pragma unroll
      for (int r = 0; r < kGroups; ++r) {
        float d[4];
        multiply_add(d, a[r].low, b.x, b.y, start);
        multiply_add(d, a[r].high, b.z, b.w, d);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums_[r][n][i] = fmaf(s[r].scale[i / 2], d[i], sums_[r][n][i]);
          if constexpr (Format::kMinimum) {
            sums_[r][n][i] =
                fmaf(s[r].other[i / 2], i % 2 == 0 ? x_sum.x : x_sum.y, sums_[r][n][i]);
          }
        }
      }
    }
  }

  const uint4* x_;
  const float* x_sums_;
  int tokens_, x_stride_, pair_stride_;
  float sums_[kGroups][kTokenTiles][4];
};

template <class Block, int kTokenTiles>
__global__ void __launch_bounds__(kQuantWarps * 32, kTokenTiles <= 4 ? 2 : 1)
    quant_linear_kernel(const __grid_constant__ QuantArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (scales_weights(kTokenTiles)) return;  // wgmma's kernel is used instead
#endif
  using Format = TileFormat<Block>;
  using Shape = QuantShape<Block>;
  constexpr int kGroups = kQuantWarpGroups;
  constexpr int kChunkBlocks = Shape::chunk_blocks(kTokenTiles);
  constexpr int kChunkBytes = kChunkBlocks * Format::kUnitBytes;
  constexpr int kStageBytes = Shape::stage_bytes(kTokenTiles);
  extern __shared__ __align__(128) uint8_t shared[];
  const QuantShared& at = a.shared;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int cluster_log2 = 3 - a.slices_log2;
  const int rank = static_cast<int>(blockIdx.x) & (a.cluster - 1);
  const int first_set = static_cast<int>(blockIdx.x) >> cluster_log2;
  const int set_step = static_cast<int>(gridDim.x) >> cluster_log2;
  const int slice_of_block = warp & (a.slices - 1), warp_set = warp >> a.slices_log2;
  const int slice = rank * a.slices + slice_of_block;
  const int begin = Shape::slice_begin(a, slice), end = Shape::slice_begin(a, slice + 1);
  uint8_t* buffers = shared + warp * a.stages * kStageBytes;
  WeightRing ring(reinterpret_cast<uint64_t*>(shared + at.barriers) + warp * a.stages, a.stages,
                  lane);

  // The next buffer to fetch: quantization blocks [fetch_block, ...) of set fetch_set.
  int fetch_set = first_set, fetch_phase = 0, fetch_block = begin, fetch_stage = 0;
  const auto fetch = [&] {
    if (fetch_set < a.sets && begin < end) {
      const int phase_end = phase_begin<Block>(a, begin, end, fetch_phase + 1);
      const int first_item = (fetch_set << a.set_items_log2) + warp_set * kGroups;
      const int valid = max(0, min(kGroups, a.items - first_item));
      const uint32_t bytes = min(kChunkBlocks, phase_end - fetch_block) * Format::kUnitBytes;
      ring.begin(fetch_stage, valid * bytes);
      for (int r = 0; r < valid; ++r) {
        int part, group;
        locate_item(a, first_item + r, part, group);
        ring.copy(fetch_stage, buffers + fetch_stage * kStageBytes + r * kChunkBytes,
                  a.parts[part].data + group * a.group_bytes +
                      static_cast<int64_t>(fetch_block) * Format::kUnitBytes,
                  bytes);
      }
      fetch_block += kChunkBlocks;
      if (fetch_block >= phase_end) {
        fetch_block = phase_end;
        ++fetch_phase;
        if (fetch_block == end) {
          fetch_block = begin;
          fetch_phase = 0;
          fetch_set += set_step;
        }
      }
    }
    ring.end();
    fetch_stage = fetch_stage + 1 == a.stages ? 0 : fetch_stage + 1;
  };
#pragma unroll 1
  for (int i = 0; i < a.stages; ++i) fetch();
  launch_dependents();
  wait_for_previous();

  uint4* x = reinterpret_cast<uint4*>(shared + at.x);
  float* x_sums = reinterpret_cast<float*>(shared + at.x_sums);
  constexpr int kPairs = kTokenTiles * 4;
  const int padded = Shape::padded(a.tokens, kTokenTiles);
  const int pairs = kTokenTiles == 1 ? (a.tokens + 1) / 2 : kPairs;
  const TileLane tile_lane(lane);
  const int g = lane / 4;
  using Scale = typename QuantAccumulator<Block, kTokenTiles>::Scale;
  Scale* prepared =
      reinterpret_cast<Scale*>(shared + at.prepared) + warp * kGroups * Format::kPreparedValues;
  float* sums = reinterpret_cast<float*>(shared + at.sums);
  const int warp_sums = kGroups * a.tokens * kQuantSumStride;
  constexpr int kSumBuffers = Shape::sum_buffers(kTokenTiles);
  QuantAccumulator<Block, kTokenTiles> accumulator(
      a, x + slice_of_block * a.phase_tiles * padded * 4,
      x_sums + slice_of_block * a.phase_tiles * pairs * 2 * Shape::x_sums(kTokenTiles), lane);
  int stage = 0, turn = 0, phase = 0;
  uint32_t parity = 0;
  for (int set = first_set; set < a.sets; ++phase) {
    if (phase == 0) accumulator.clear();
    if (a.phases > 1 || set == first_set) {
      const auto meet = [&] {  // the warps that share a slice
        if (a.slices == kQuantSlices) {
          __syncwarp();
        } else {
          __syncthreads();
        }
      };
      meet();  // all of them have read the previous x
      stage_x<Block, kTokenTiles>(a, rank, phase, x, x_sums);
      meet();
    }
    const int phase_first = phase_begin<Block>(a, begin, end, phase);
    const int phase_end = phase_begin<Block>(a, begin, end, phase + 1);
    for (int block = phase_first; block < phase_end; block += kChunkBlocks) {
      ring.wait(stage, parity);
      const uint8_t* chunk = buffers + stage * kStageBytes;
      const int first_tile = (block - phase_first) * Format::kTiles;
      if constexpr (Format::kPrepared) {
#pragma unroll
        for (int r = 0; r < kGroups; ++r) {
          prepare_scales<Block>(chunk + r * kChunkBytes, prepared + r * Format::kPreparedValues,
                                lane);
        }
        __syncwarp();
#pragma unroll 1
        for (int quad = 0; quad < 2; ++quad) {
          TileScales<Scale> scales[kGroups][4];
#pragma unroll
          for (int r = 0; r < kGroups; ++r) {
            prepared_scales<Block>(prepared + r * Format::kPreparedValues, quad, g, scales[r]);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            TileOperands operands[kGroups];
            TileScales<Scale> of_tile[kGroups];
#pragma unroll
            for (int r = 0; r < kGroups; ++r) {
              operands[r] = tile_operands<Block>(
                  tile_words<Block>(chunk + r * kChunkBytes + Format::kHeaderBytes +
                                        (quad * 4 + i) * Format::kSubBytes,
                                    tile_lane),
                  tile_lane);
              of_tile[r] = scales[r][i];
            }
            accumulator.add(first_tile + quad * 4 + i, operands, of_tile);
          }
        }
      } else {
        const int blocks = min(kChunkBlocks, phase_end - block);
        const auto add_block = [&](int b) {
          TileScales<Scale> scales[kGroups];
#pragma unroll
          for (int r = 0; r < kGroups; ++r) {
            scales[r] =
                header_scales<Block, Scale>(chunk + r * kChunkBytes + b * Format::kUnitBytes, g);
          }
#pragma unroll
          for (int i = 0; i < Format::kTiles; ++i) {
            TileOperands operands[kGroups];
#pragma unroll
            for (int r = 0; r < kGroups; ++r) {
              operands[r] = tile_operands<Block>(
                  tile_words<Block>(chunk + r * kChunkBytes + b * Format::kUnitBytes +
                                        Format::kHeaderBytes + i * Format::kSubBytes,
                                    tile_lane),
                  tile_lane);
            }
            accumulator.add(first_tile + b * Format::kTiles + i, operands, scales);
          }
        };
        if (blocks == kChunkBlocks) {  // the number is known: loads of several tiles overlap
          constexpr int kUnroll = kTokenTiles == 1 ? kChunkBlocks : 2;
#pragma unroll kUnroll
          for (int b = 0; b < kChunkBlocks; ++b) add_block(b);
        } else {
#pragma unroll 1
          for (int b = 0; b < blocks; ++b) add_block(b);
        }
      }
      ring.release();
      fetch();
      if (++stage == a.stages) {
        stage = 0;
        parity ^= 1;
      }
    }

    if (phase + 1 < a.phases) continue;

    float* of_turn = sums + turn * kQuantWarps * warp_sums;
    if (kSumBuffers == 1 && set != first_set) wait_at_barrier(a.cluster);
    accumulator.store(of_turn + warp * warp_sums, lane);
    block_barrier(a.cluster);
    // Takes four rows at a time. In gated calls an output has two neighbouring items.
    const int gated = a.gated() ? 1 : 0, output_items_log2 = a.set_items_log2 - gated;
    const int outputs = 4 * a.tokens << output_items_log2;
    for (int o = rank * kQuantWarps * 32 + static_cast<int>(threadIdx.x); o < outputs;
         o += a.cluster * kQuantWarps * 32) {
      const int row = o % 4 * 4;
      const int local = (o / 4 & ((1 << output_items_log2) - 1)) << gated;
      const int token = o / 4 >> output_items_log2;
      const int item = (set << a.set_items_log2) + local;
      if (item >= a.items) continue;
      const auto sum_of = [&](int index) {
        const float* from = of_turn + (index / kGroups << a.slices_log2) * warp_sums +
                            (index % kGroups * a.tokens + token) * kQuantSumStride + row;
        float4 parts[kQuantSlices], sum{0, 0, 0, 0};
#pragma unroll
        for (int s = 0; s < kQuantSlices; ++s) {
          parts[s] = load_shared_of(from + (s & (a.slices - 1)) * warp_sums, s >> a.slices_log2,
                                    a.cluster);
        }
#pragma unroll
        for (int s = 0; s < kQuantSlices; ++s) {
          sum.x += parts[s].x, sum.y += parts[s].y;
          sum.z += parts[s].z, sum.w += parts[s].w;
        }
        return sum;
      };
      const float4 sum = sum_of(local);
      const float4 up = gated != 0 ? sum_of(local + 1) : float4{0, 0, 0, 0};
      int part, group;
      locate_item(a, item, part, group);
      finish_four(a, part, group * 16 + row, token, sum, up);
    }
    // The sums have been read; a warp that writes the next ones waits for this barrier only then.
    if constexpr (kSumBuffers == 2) {
      turn ^= 1;
    } else {
      arrive_at_barrier(a.cluster);
    }
    set += set_step;
    phase = -1;
  }
  // A thread block must not exit while others of its cluster may read its sums.
  if (a.cluster > 1) {
    if (kSumBuffers == 2 || first_set >= a.sets) arrive_at_barrier(a.cluster);
    wait_at_barrier(a.cluster);
  }
}

}  // namespace spillway::cuda
