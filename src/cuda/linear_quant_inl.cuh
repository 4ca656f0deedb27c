// SPDX-License-Identifier: Apache-2.0
// The kernel of quant_linear() over packed groups of 16 rows, and how its launch is shaped.
//
// K is cut into eight slices of whole blocks. A block of eight warps has 1, 2, 4 or 8 of them (a
// cluster of blocks has all), and as many pairs of groups as that leaves warps: with few tokens all
// warps of a block share two groups, and x lies whole in its shared memory; with many a cluster of
// eight blocks shares sixteen, and each holds an eighth of x. A warp streams its slice of two
// groups after two groups, through a ring of its own, so that nobody waits for anybody until sums
// meet: in shared memory, across the cluster, added in the order of the slices.
//
// The first buffers are on their way before the kernel waits for the one in front of it.
#pragma once

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "cuda/launch.cuh"
#include "cuda/linear_quant_args.h"
#include "cuda/linear_quant_epilogue.cuh"
#include "cuda/linear_quant_tile.cuh"
#include "cuda/weight_ring.cuh"

namespace spillway::cuda {

// Sums lie [token][16 rows], 20 apart so that a warp's stores meet no bank twice.
inline constexpr int kQuantSumStride = 20;

// Where things lie in a block's shared memory, in bytes.
struct QuantShared {
  int barriers;
  int prepared;
  int sums;
  int x_sums;
  int x;
  int total;
};

template <class Block>
struct QuantShape {
  using Format = TileFormat<Block>;
  // Blocks of a buffer: 256 columns, 128 of 8-bit types.
  static constexpr int kChunkBlocks =
      std::max(1, (Format::kBits == 8 ? 128 : 256) / Block::kElements);
  static constexpr int kChunkBytes = kChunkBlocks * Format::kUnitBytes;
  static constexpr int kStageBytes = kQuantWarpGroups * kChunkBytes;
  // Sums of x per tile and token: the correction of offsets; with minima or two scales one more.
  static constexpr int kXSums = Format::kMinimum || Format::kSplit ? 2 : 1;

  // Sums of two sets in turn where they are small: one barrier per set instead of two.
  __host__ __device__ static int sum_buffers(int tokens) { return tokens <= 8 ? 2 : 1; }
  __host__ __device__ static int max_tiles(const QuantArgs& a) {
    const int blocks = a.k / Block::kElements;
    return (blocks + a.cluster - 1) / a.cluster * Format::kTiles;
  }
  // `first` of slice s.
  __host__ __device__ static int slice_begin(const QuantArgs& a, int s) {
    return static_cast<int>(static_cast<int64_t>(a.k / Block::kElements) * s / kQuantSlices);
  }
  __host__ __device__ static QuantShared shared(const QuantArgs& a) {
    QuantShared at{};
    at.barriers = kQuantWarps * a.stages * kStageBytes;
    at.prepared = at.barriers + kQuantWarps * a.stages * 8;
    at.prepared = (at.prepared + 127) / 128 * 128;
    at.sums = at.prepared + (Format::kPrepared ? kQuantWarps * kQuantWarpGroups * 1024 : 0);
    at.x_sums = at.sums + sum_buffers(a.tokens) * kQuantWarps * kQuantWarpGroups * a.tokens *
                              kQuantSumStride * 4;
    at.x = at.x_sums + max_tiles(a) * ((a.tokens + 1) / 2) * kXSums * 8;
    at.x = (at.x + 15) / 16 * 16;
    at.total = at.x + max_tiles(a) * a.tokens * 64;
    return at;
  }
};

__device__ __forceinline__ void block_barrier(int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

// A float in the shared memory of block `rank` of this cluster.
__device__ __forceinline__ float load_shared_of(const float* own, int rank, int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    uint32_t address;
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(shared_address(own)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
  }
#endif
  return *own;
}

// The group behind an item: which part, which of its groups.
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

// x of this block's columns to shared memory in the order of mma's B, [tile][token][t], with the
// sums that take off what lies in the operands of A on top of codes.
template <class Block>
__device__ __forceinline__ void stage_x(const QuantArgs& a, int first_tile, int tiles, uint4* x,
                                        float* x_sums) {
  using Format = TileFormat<Block>;
  constexpr int kXSums = QuantShape<Block>::kXSums;
  const int total = tiles * a.tokens * 4, pairs = (a.tokens + 1) / 2;
  const __half* from = static_cast<const __half*>(a.x) + first_tile * 32;
#pragma unroll 2
  for (int base = 0; base < total; base += kQuantWarps * 32) {
    const int i = base + static_cast<int>(threadIdx.x);
    const bool active = i < total;
    const int t = i % 4, tile = i / 4 / a.tokens, token = i / 4 % a.tokens;
    uint2 first{0, 0}, second{0, 0};
    if (active) {
      const __half* row = from + token * a.x_stride + tile * 32;
      const int low = Format::kBits == 8 ? 8 * t : 4 * t;
      const int high = Format::kBits == 8 ? low + 4 : low + 16;
      first = *reinterpret_cast<const uint2*>(row + low);
      second = *reinterpret_cast<const uint2*>(row + high);
    }
    const auto sum4 = [](uint2 v) {
      const float2 p = __half22float2(reinterpret_cast<const __half2&>(v.x));
      const float2 q = __half22float2(reinterpret_cast<const __half2&>(v.y));
      return (p.x + p.y) + (q.x + q.y);
    };
    float low_sum = sum4(first), high_sum = sum4(second);
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      low_sum += __shfl_xor_sync(~0U, low_sum, step);
      high_sum += __shfl_xor_sync(~0U, high_sum, step);
    }
    if (!active) continue;
    if constexpr (Format::kBits == 8) {
      x[i] = {first.x, first.y, second.x, second.y};
    } else {  // (0, 2) and (1, 3)
      x[i] = {__byte_perm(first.x, first.y, 0x5410), __byte_perm(first.x, first.y, 0x7632),
              __byte_perm(second.x, second.y, 0x5410), __byte_perm(second.x, second.y, 0x7632)};
    }
    if (t == 0) {
      float* to = x_sums + (tile * pairs + token / 2) * 2 * kXSums + token % 2;
      const float low = -Format::kLowOffset * low_sum, high = -Format::kHighOffset * high_sum;
      if constexpr (Format::kSplit) {
        to[0] = low;
        to[2] = high;
      } else {
        to[0] = low + high;
        if constexpr (Format::kMinimum) to[2] = low_sum + high_sum;
      }
    }
  }
}

template <class Block, int kTokenTiles>
class QuantAccumulator {
 public:
  using Format = TileFormat<Block>;
  static constexpr int kGroups = kQuantWarpGroups;

  __device__ __forceinline__ QuantAccumulator(const QuantArgs& a, const uint4* x,
                                              const float* x_sums, int lane)
      : x_(x), x_sums_(x_sums), tokens_(a.tokens), pairs_((a.tokens + 1) / 2) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      // Beyond the last token its values are read again: no padding, and no bank conflicts.
      x_at_[n] = min(n * 8 + g, tokens_ - 1) * 4 + t;
      pair_at_[n] = min(n * 4 + t, pairs_ - 1);
    }
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

  // Adds tile `tile` (of this block's columns) of both groups.
  __device__ __forceinline__ void add(int tile, const TileOperands a[kGroups],
                                      const TileScales s[kGroups]) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const uint4 b = x_[tile * tokens_ * 4 + x_at_[n]];
      const int record = tile * pairs_ + pair_at_[n];
      if constexpr (Format::kSplit) {
        const float4 start = reinterpret_cast<const float4*>(x_sums_)[record];
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
          }
        }
      } else {
        float start[4], x_sum[2] = {0, 0};
        if constexpr (Format::kMinimum) {
          const float4 both = reinterpret_cast<const float4*>(x_sums_)[record];
          start[0] = start[2] = both.x, start[1] = start[3] = both.y;
          x_sum[0] = both.z, x_sum[1] = both.w;
        } else {
          const float2 both = reinterpret_cast<const float2*>(x_sums_)[record];
          start[0] = start[2] = both.x, start[1] = start[3] = both.y;
        }
#pragma unroll
        for (int r = 0; r < kGroups; ++r) {
          float d[4];
          multiply_add(d, a[r].low, b.x, b.y, start);
          multiply_add(d, a[r].high, b.z, b.w, d);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums_[r][n][i] = fmaf(s[r].scale[i / 2], d[i], sums_[r][n][i]);
            if constexpr (Format::kMinimum) {
              sums_[r][n][i] = fmaf(s[r].other[i / 2], x_sum[i % 2], sums_[r][n][i]);
            }
          }
        }
      }
    }
  }

  // To [group][token][kQuantSumStride].
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
  const uint4* x_;
  const float* x_sums_;
  int tokens_, pairs_;
  int x_at_[kTokenTiles], pair_at_[kTokenTiles];
  float sums_[kGroups][kTokenTiles][4];
};

template <class Block, int kTokenTiles>
__global__ void __launch_bounds__(kQuantWarps * 32, kTokenTiles == 1 ? 2 : 1)
    quant_linear_kernel(const __grid_constant__ QuantArgs a) {
  using Format = TileFormat<Block>;
  using Shape = QuantShape<Block>;
  constexpr int kGroups = kQuantWarpGroups;
  extern __shared__ __align__(128) uint8_t shared[];
  const QuantShared at = Shape::shared(a);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(blockIdx.x) % a.cluster;
  const int first_set = static_cast<int>(blockIdx.x) / a.cluster;
  const int set_step = static_cast<int>(gridDim.x) / a.cluster;
  const int slices = a.block_slices(), block_sets = a.block_sets();
  const int set_items = block_sets * kGroups;
  const int sets = (a.items + set_items - 1) / set_items;
  const int slice = rank * slices + warp % slices, warp_set = warp / slices;
  const int begin = Shape::slice_begin(a, slice), end = Shape::slice_begin(a, slice + 1);
  uint8_t* buffers = shared + warp * a.stages * Shape::kStageBytes;
  WeightRing ring(reinterpret_cast<uint64_t*>(shared + at.barriers) + warp * a.stages, a.stages,
                  lane);

  // The next buffer's worth to fetch: blocks [fetch_block, ...) of set fetch_set.
  int fetch_set = first_set, fetch_block = begin, fetch_stage = 0;
  const auto fetch = [&] {
    if (fetch_set < sets && begin < end) {
      const int first_item = fetch_set * set_items + warp_set * kGroups;
      const int valid = max(0, min(kGroups, a.items - first_item));
      const uint32_t bytes = min(Shape::kChunkBlocks, end - fetch_block) * Format::kUnitBytes;
      ring.begin(fetch_stage, valid * bytes);
      for (int r = 0; r < valid; ++r) {
        int part, group;
        locate_item(a, first_item + r, part, group);
        ring.copy(fetch_stage, buffers + fetch_stage * Shape::kStageBytes + r * Shape::kChunkBytes,
                  a.parts[part].data + group * a.group_bytes +
                      static_cast<int64_t>(fetch_block) * Format::kUnitBytes,
                  bytes);
      }
      fetch_block += Shape::kChunkBlocks;
      if (fetch_block >= end) {
        fetch_block = begin;
        fetch_set += set_step;
      }
    }
    ring.end();
    fetch_stage = fetch_stage + 1 == a.stages ? 0 : fetch_stage + 1;
  };
  for (int i = 0; i < a.stages; ++i) fetch();
  let_next_start();
  wait_for_previous();

  uint4* x = reinterpret_cast<uint4*>(shared + at.x);
  float* x_sums = reinterpret_cast<float*>(shared + at.x_sums);
  const int block_begin = Shape::slice_begin(a, rank * slices);
  const int block_end = Shape::slice_begin(a, (rank + 1) * slices);
  stage_x<Block>(a, block_begin * Format::kTiles, (block_end - block_begin) * Format::kTiles, x,
                 x_sums);
  __syncthreads();

  const TileLane tile_lane(lane);
  const int g = lane / 4;
  float* prepared = reinterpret_cast<float*>(shared + at.prepared) + warp * kGroups * 256;
  float* sums = reinterpret_cast<float*>(shared + at.sums);
  const int warp_sums = kGroups * a.tokens * kQuantSumStride;
  const int sum_buffers = Shape::sum_buffers(a.tokens);
  QuantAccumulator<Block, kTokenTiles> accumulator(a, x, x_sums, lane);
  int stage = 0, turn = 0;
  uint32_t parity = 0;
  for (int set = first_set; set < sets; set += set_step) {
    accumulator.clear();
    for (int block = begin; block < end; block += Shape::kChunkBlocks) {
      ring.wait(stage, parity);
      const uint8_t* chunk = buffers + stage * Shape::kStageBytes;
      const int first_tile = (block - block_begin) * Format::kTiles;
      if constexpr (Format::kPrepared) {
#pragma unroll
        for (int r = 0; r < kGroups; ++r) {
          prepare_scales<Block>(chunk + r * Shape::kChunkBytes, prepared + r * 256, lane);
        }
        __syncwarp();
#pragma unroll 1
        for (int quad = 0; quad < 2; ++quad) {
          TileScales scales[kGroups][4];
#pragma unroll
          for (int r = 0; r < kGroups; ++r) {
            prepared_scales<Block>(prepared + r * 256, quad, g, scales[r]);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            TileOperands operands[kGroups];
            TileScales of_tile[kGroups];
#pragma unroll
            for (int r = 0; r < kGroups; ++r) {
              operands[r] =
                  tile_operands<Block>(chunk + r * Shape::kChunkBytes + Format::kHeaderBytes +
                                           (quad * 4 + i) * Format::kSubBytes,
                                       tile_lane);
              of_tile[r] = scales[r][i];
            }
            accumulator.add(first_tile + quad * 4 + i, operands, of_tile);
          }
        }
      } else {
        const int blocks = min(Shape::kChunkBlocks, end - block);
        const auto add_block = [&](int b) {
          TileScales scales[kGroups];
#pragma unroll
          for (int r = 0; r < kGroups; ++r) {
            scales[r] =
                header_scales<Block>(chunk + r * Shape::kChunkBytes + b * Format::kUnitBytes, g);
          }
#pragma unroll
          for (int i = 0; i < Format::kTiles; ++i) {
            TileOperands operands[kGroups];
#pragma unroll
            for (int r = 0; r < kGroups; ++r) {
              operands[r] =
                  tile_operands<Block>(chunk + r * Shape::kChunkBytes + b * Format::kUnitBytes +
                                           Format::kHeaderBytes + i * Format::kSubBytes,
                                       tile_lane);
            }
            accumulator.add(first_tile + b * Format::kTiles + i, operands, scales);
          }
        };
        if (blocks == Shape::kChunkBlocks) {  // known number: loads of several tiles overlap
          constexpr int kUnroll = kTokenTiles == 1 ? Shape::kChunkBlocks : 2;
#pragma unroll kUnroll
          for (int b = 0; b < Shape::kChunkBlocks; ++b) add_block(b);
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

    float* of_turn = sums + turn * kQuantWarps * warp_sums;
    accumulator.store(of_turn + warp * warp_sums, lane);
    block_barrier(a.cluster);
    const int step = a.gated() ? 2 : 1;
    const int outputs = set_items / step * 16 * a.tokens;
    for (int o = rank * kQuantWarps * 32 + static_cast<int>(threadIdx.x); o < outputs;
         o += a.cluster * kQuantWarps * 32) {
      const int row = o % 16, local = o / 16 % (set_items / step) * step;
      const int token = o / 16 / (set_items / step);
      const int item = set * set_items + local;
      if (item >= a.items) continue;
      const auto sum_of = [&](int index) {
        const float* from = of_turn + (index / kGroups * slices) * warp_sums +
                            (index % kGroups * a.tokens + token) * kQuantSumStride + row;
        float sum = 0;
#pragma unroll
        for (int s = 0; s < kQuantSlices; ++s) {
          sum += load_shared_of(from + s % slices * warp_sums, s / slices, a.cluster);
        }
        return sum;
      };
      const float sum = sum_of(local);
      const float up = a.gated() ? sum_of(local + 1) : 0;
      int part, group;
      locate_item(a, item, part, group);
      finish_output(a, part, group * 16 + row, token, sum, up);
    }
    if (sum_buffers == 2) {
      turn ^= 1;
    } else {
      block_barrier(a.cluster);
    }
  }
  // Nobody leaves while others of its cluster may read its sums.
  if (a.cluster > 1) block_barrier(a.cluster);
}

// Shapes the launch: the smallest cluster that leaves each block a small x, rings as deep as half
// of an SM's shared memory allows (so that two blocks fit, or the next kernel's first), all of it
// where x is large.
template <class Block>
bool shape_quant_launch(QuantArgs& a, const QuantLinearTuning& tuning,
                        const QuantDeviceLimits& limits) {
  constexpr int kReservedBytes = 1024;  // the system's, per block
  constexpr int64_t kSmallXBytes = 40 << 10;
  const int half = (limits.shared_bytes + kReservedBytes) / 2 - kReservedBytes;
  for (const bool small : {true, false}) {
    const int bytes = small ? half : limits.shared_bytes;
    for (int cluster = 1; cluster <= (limits.clusters ? kQuantSlices : 1); cluster *= 2) {
      if (tuning.cluster != 0 && limits.clusters && cluster != tuning.cluster) continue;
      if (tuning.cluster == 0 && small && limits.clusters &&
          cluster<kQuantSlices&& static_cast<int64_t>(a.tokens) * a.k * 2 / cluster> kSmallXBytes) {
        continue;
      }
      for (int stages = 4; stages >= (small ? 2 : 1); --stages) {
        if (tuning.stages != 0 && stages != tuning.stages) continue;
        a.cluster = cluster;
        a.stages = stages;
        if (QuantShape<Block>::shared(a).total <= bytes) return true;
      }
    }
  }
  return false;
}

template <class Block, int kTokenTiles>
void launch_quant_kernel(const QuantArgs& a, const QuantLinearTuning& tuning,
                         const QuantDeviceLimits& limits, cudaStream_t stream) {
  auto* kernel = quant_linear_kernel<Block, kTokenTiles>;
  static std::once_flag once[16];
  int device = 0;
  SPW_CUDA_CHECK(cudaGetDevice(&device));
  std::call_once(once[device % 16], [&] {
    SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        limits.shared_bytes));
  });
  const int bytes = QuantShape<Block>::shared(a).total;
  const int set_items = a.block_sets() * kQuantWarpGroups;
  const int sets = (a.items + set_items - 1) / set_items;
  // One or two blocks per SM: what leaves the SM with most work less of it; two where it is equal.
  int per_sm = 1;
  if (kTokenTiles == 1 && 2 * (bytes + 1024) <= limits.shared_bytes + 1024) {
    const auto rounds = [&](int blocks) {
      const int slots = limits.sms * blocks / a.cluster;
      return (sets + slots - 1) / slots * blocks;
    };
    per_sm = rounds(2) <= rounds(1) ? 2 : 1;
    if (tuning.blocks_per_sm != 0) per_sm = tuning.blocks_per_sm;
  }
  const int clusters = std::max(1, std::min(sets, limits.sms * per_sm / a.cluster));
  launch_clusters(kernel, dim3(clusters * a.cluster), dim3(kQuantWarps * 32), bytes, a.cluster,
                  stream, a);
}

template <class Block>
bool launch_quant(QuantArgs a, const QuantLinearTuning& tuning, const QuantDeviceLimits& limits,
                  cudaStream_t stream) {
  if (!shape_quant_launch<Block>(a, tuning, limits)) return false;
  if (a.tokens <= 8) {
    launch_quant_kernel<Block, 1>(a, tuning, limits, stream);
  } else if (a.tokens <= 16) {
    launch_quant_kernel<Block, 2>(a, tuning, limits, stream);
  } else if (a.tokens <= 32) {
    launch_quant_kernel<Block, 4>(a, tuning, limits, stream);
  } else {
    launch_quant_kernel<Block, 8>(a, tuning, limits, stream);
  }
  return true;
}

}  // namespace spillway::cuda
