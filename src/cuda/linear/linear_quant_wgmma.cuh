// SPDX-License-Identifier: Apache-2.0
// The kernel of quant_linear() for more than a few tokens on Hopper: weights become halves in
// registers, the first operand of wgmma; x, in shared memory, is the second.
//
// Clusters of eight thread blocks share K as in linear_quant_inl.cuh: each thread block has a
// slice, and x of it stays in its shared memory. A set is eight groups of 16 rows, one per warp,
// that two warpgroups multiply; each warp streams its groups through a ring of its own. Each thread
// block finishes one group of a set (in gated calls a pair of groups, for half of the tokens):
// warps send their sums to the thread block that finishes them, by bulk copies from shared memory
// to shared memory, and go on with the next set. Further warps of each thread block wait for the
// sums of all eight thread blocks, add them up in the order of the slices and finish the outputs.
#pragma once

#include "cuda/kernel/launch.cuh"
#include "cuda/kernel/wgmma.cuh"
#include "cuda/linear/linear_quant_args.h"
#include "cuda/linear/linear_quant_epilogue.cuh"
#include "cuda/linear/linear_quant_inl.cuh"
#include "cuda/linear/linear_quant_scales.cuh"
#include "cuda/linear/linear_quant_tile.cuh"
#include "cuda/linear/weight_ring.cuh"

namespace spillway::cuda {

inline constexpr int kWgmmaWarps = 8;   // that multiply
inline constexpr int kWgmmaStages = 4;  // most stages of a ring
// Returns the number of warps that finish outputs: two thread blocks of an SM share its registers.
__host__ __device__ constexpr int wgmma_finish_warps(int tokens) { return tokens <= 32 ? 2 : 4; }
__host__ __device__ constexpr int wgmma_threads(int tokens) {
  return (kWgmmaWarps + wgmma_finish_warps(tokens)) * 32;
}

struct WgmmaBarriers {
  uint64_t ring[kWgmmaWarps][kWgmmaStages];
  uint64_t received;  // the sums of all thread blocks have arrived
  uint64_t taken;     // all thread blocks have used what this one sent
};

template <class Block>
struct WgmmaShape {
  using Format = TileFormat<Block>;
  static constexpr int kColumns = Format::kBits == 8 ? 128 : 256;  // per buffer
  static constexpr int kChunkBlocks = kColumns > Block::kElements ? kColumns / Block::kElements : 1;
  static constexpr int kStageBytes = kChunkBlocks * Format::kUnitBytes;

  // Returns where slice `s` of the columns of this launch begins, in quantization blocks.
  __host__ __device__ static int slice_begin(const QuantArgs& a, int s) {
    return a.first_block + a.blocks * s / kQuantSlices;
  }
  // Fills in what follows from blocks, stages and tokens (as the kernel is compiled for).
  static void complete(QuantArgs& a, int tokens) {
    a.cluster = kQuantSlices;
    a.slices = 1;
    a.slices_log2 = 0;
    a.set_items_log2 = 3;
    static_assert(kWgmmaWarps == 1 << 3);
    a.sets = (a.items + kWgmmaWarps - 1) / kWgmmaWarps;
    a.phases = 1;
    a.phase_tiles = (a.blocks + kQuantSlices - 1) / kQuantSlices * Format::kTiles;
    QuantShared& at = a.shared;
    at.x = 0;
    at.sums = (a.phase_tiles + 1) / 2 * tokens * 128;
    at.received = at.sums + kWgmmaWarps * 16 * tokens * 4;
    at.prepared = at.received + kQuantSlices * 16 * tokens * 4;
    at.ring = at.prepared + kWgmmaWarps * Format::kPreparedValues * 2;
    at.barriers = at.ring + kWgmmaWarps * a.stages * kStageBytes;
    at.total = at.barriers + static_cast<int>(sizeof(WgmmaBarriers));
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The two halves of a barrier of all threads of the cluster. It orders no writes except for
// barriers that were published.
__device__ __forceinline__ void arrive_in_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Returns the address of `own` in thread block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in(const void* own, int rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(own)), "r"(rank));
  return address;
}
// Arrives at a barrier of thread block `rank`, after values read from shared memory have been used:
// a read whose value was used is over, so no release is needed, which would wait for stores to
// global memory.
__device__ __forceinline__ void arrive_in(const uint64_t* barrier, int rank) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   address_in(barrier, rank))
               : "memory");
}
// Copies `bytes` of shared memory to thread block `rank`; they count for its barrier.
__device__ __forceinline__ void send(const float* to, const float* from, uint32_t bytes,
                                     const uint64_t* barrier, int rank) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(address_in(to, rank)),
      "r"(shared_address(from)), "r"(bytes), "r"(address_in(barrier, rank))
      : "memory");
}
// Waits at a barrier for arrivals from the whole cluster.
__device__ __forceinline__ void wait_for_cluster(const uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

// Stores x of columns [32 first_tile, + 32 tiles) as wgmma's second operand: runs of 64 columns,
// each [token] rows of 128 bytes, swizzled; the columns of a tile are in the order in which thread
// t's operands have them (linear_quant_tile.cuh).
template <class Block, int kTokens>
__device__ __forceinline__ void stage_wgmma_x(const QuantArgs& a, int first_tile, int tiles,
                                              uint8_t* to, int warp, int lane) {
  constexpr int kEights = kTokens / 8, kBatch = 2;
  const int units = (tiles + 3) / 4 * kEights;  // units of eight tokens and four tiles
  constexpr int kStep = wgmma_threads(kTokens) / 32;
  for (int base = warp; base < units; base += kBatch * kStep) {
    uint4 columns[kBatch][4];
    int tile[kBatch], token[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int unit = base + u * kStep;
      token[u] = unit % kEights * 8 + lane % 8;
      tile[u] = unit / kEights * 4 + lane / 8;
      if (token[u] >= a.tokens || tile[u] >= tiles) {
        tile[u] = -1;
        continue;
      }
      const __half* from =
          static_cast<const __half*>(a.x) + token[u] * a.x_stride + (first_tile + tile[u]) * 32;
#pragma unroll
      for (int i = 0; i < 4; ++i) columns[u][i] = __ldcg(reinterpret_cast<const uint4*>(from) + i);
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (tile[u] < 0) continue;
      const uint4(&c)[4] = columns[u];
      uint4 pieces[4];
      if constexpr (TileFormat<Block>::kBits == 8) {
        pieces[0] = {c[0].x, c[1].x, c[2].x, c[3].x};
        pieces[1] = {c[0].y, c[1].y, c[2].y, c[3].y};
        pieces[2] = {c[0].z, c[1].z, c[2].z, c[3].z};
        pieces[3] = {c[0].w, c[1].w, c[2].w, c[3].w};
      } else {  // the even ones of 16 columns, then the odd ones
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint4 &p = c[i / 2 * 2], &q = c[i / 2 * 2 + 1];
          const uint32_t take = i % 2 == 0 ? 0x5410 : 0x7632;
          pieces[i] = {__byte_perm(p.x, p.y, take), __byte_perm(p.z, p.w, take),
                       __byte_perm(q.x, q.y, take), __byte_perm(q.z, q.w, take)};
        }
      }
      uint8_t* row = to + (tile[u] / 2 * kTokens + token[u]) * 128;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int piece = (tile[u] % 2 * 4 + i) ^ (token[u] % 8);
        *reinterpret_cast<uint4*>(row + piece * 16) = pieces[i];
      }
    }
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Returns the place of the sum of a token and one of 16 rows among a warp's sums: no store uses a
// bank twice, and four neighbouring rows stay neighbours.
__device__ __forceinline__ int wgmma_sum_index(int token, int row) {
  return (token * 16 + row) ^ (token / 2 % 4 * 8);
}

// The sums of a warp's 16 rows of a warpgroup's 64.
template <class Block, int kTokens>
class WgmmaSums {
 public:
  using Format = TileFormat<Block>;
  using Shape = WgmmaShape<Block>;

  __device__ __forceinline__ WgmmaSums(const uint8_t* x, int lane)
      : x_(static_cast<uint32_t>(matrix_descriptor(shared_address(x)))), at_(lane), lane_(lane) {}

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& sum : sums_) sum = 0;
  }

  // Adds a buffer: `blocks` quantization blocks from tile `tile` of the slice on. `prepared` is
  // room for the scales of K-quant types.
  __device__ __forceinline__ void add(const uint8_t* chunk, int tile, int blocks,
                                      __half2* prepared) {
    if constexpr (Format::kPrepared) {
      prepare_scales<Block>(chunk, prepared, lane_);
      __syncwarp();
    } else if (blocks != Shape::kChunkBlocks) {  // the last buffer of a slice
#pragma unroll 1
      for (int t = 0; t < blocks * Format::kTiles; ++t) {
        const uint8_t* block = chunk + t / Format::kTiles * Format::kUnitBytes;
        TileOperands& operands = operands_[0][0];
        decode(operands,
               tile_words<Block>(
                   block + Format::kHeaderBytes + t % Format::kTiles * Format::kSubBytes, at_),
               header_scales<Block, __half2>(block, lane_ / 4));
        wgmma_fence();
        multiply(operands, x_at(tile + t));
        wgmma_commit();
        wgmma_wait<0>(sums_);
      }
      return;
    }
    uint32_t x = x_at(tile);  // tile is even: buffers have an even number of tiles
#pragma unroll 1
    for (int quad = 0; quad < kQuads; ++quad) {
      // All are read here: while products are in flight the compiler moves no reads.
      TileWords words[4];
      TileScales<__half2> scales[4];
      if constexpr (Format::kPrepared) prepared_scales<Block>(prepared, quad, lane_ / 4, scales);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint8_t* block = chunk + (quad * 4 + i) / Format::kTiles * Format::kUnitBytes;
        words[i] = tile_words<Block>(
            block + Format::kHeaderBytes + (quad * 4 + i) % Format::kTiles * Format::kSubBytes,
            at_);
        if constexpr (!Format::kPrepared)
          scales[i] = header_scales<Block, __half2>(block, lane_ / 4);
      }
#pragma unroll
      for (int i = 0; i < 4; i += kBatch) {
        const int turn = i / kBatch % 2;
#pragma unroll
        for (int j = i; j < i + kBatch; ++j) decode(operands_[turn][j - i], words[j], scales[j]);
        wgmma_fence();
#pragma unroll
        for (int j = i; j < i + kBatch; ++j)
          multiply(operands_[turn][j - i], x + kPairStep * (j / 2) + j % 2 * 4);
        wgmma_commit();
        wgmma_wait_for_others<1>();  // for the previous tiles: their operands may be replaced
      }
      x += 2 * kPairStep;
    }
  }

  // Stores the sums as [token][16 rows], see wgmma_sum_index().
  __device__ __forceinline__ void finish(float* to) {
    wgmma_wait<0>(sums_);
    const int g = lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[wgmma_sum_index(8 * j + 2 * t + i % 2, g + i / 2 * 8)] = sums_[4 * j + i];
      }
    }
  }

 private:
  // Tiles that are multiplied together: as many as there are registers for.
  static constexpr int kBatch = kTokens == 64 ? 2 : 1;
  static constexpr int kQuads = Shape::kChunkBlocks * Format::kTiles / 4;
  static constexpr int kPairStep = kTokens * 128 >> 4;  // of descriptors, per 64 columns

  // Returns the low half of the descriptor of x's columns of a tile.
  __device__ __forceinline__ uint32_t x_at(int tile) const {
    return x_ + tile / 2 * kPairStep + tile % 2 * 4;
  }
  __device__ __forceinline__ void decode(TileOperands& operands, const TileWords& words,
                                         const TileScales<__half2>& scales) {
    operands = tile_operands<Block>(words, at_);
    scale_operands<Block>(operands, scales);
  }
  __device__ __forceinline__ void multiply(const TileOperands& operands, uint32_t x) {
    const uint64_t above = matrix_descriptor(0);
    wgmma_registers(sums_, operands.low, above | x);
    wgmma_registers(sums_, operands.high, above | (x + 2));
  }

  float sums_[kTokens / 2];
  TileOperands operands_[2][kBatch];  // of products in flight, and of the next ones
  uint32_t x_;                        // the low half of x's descriptor
  TileLane at_;
  int lane_;
};

// Sends a warp's sums of a set to the thread blocks that finish them.
template <int kTokens>
__device__ __forceinline__ void send_sums(const QuantArgs& a, const float* sums, float* received,
                                          const uint64_t* barrier, int rank, int warp) {
  constexpr int kSums = 16 * kTokens;
  float* to = received + rank * kSums;
  if (!a.gated()) {
    send(to, sums, kSums * 4, barrier, warp);
    return;
  }
  // Sends the first half of the tokens of a gate and its up, then the second half.
  to += warp % 2 * kSums / 2;
  send(to, sums, kSums * 2, barrier, warp / 2 * 2);
  send(to, sums + kSums / 2, kSums * 2, barrier, warp / 2 * 2 + 1);
}

// Finishes what this thread block has received of a set.
template <int kTokens>
__device__ __forceinline__ void finish_wgmma_set(const QuantArgs& a, int set, const float* received,
                                                 int rank, int thread) {
  constexpr int kSums = 16 * kTokens;
  const bool gated = a.gated();
  const int item = set * kWgmmaWarps + (gated ? rank / 2 * 2 : rank);
  if (item >= a.items) return;
  const int first_token = gated ? rank % 2 * (kTokens / 2) : 0;
  const int tokens = min(gated ? kTokens / 2 : kTokens, a.tokens - first_token);
  int part, group;
  locate_item(a, item, part, group);
  for (int o = thread; o < 4 * tokens; o += wgmma_finish_warps(kTokens) * 32) {
    const int row = o % 4 * 4, token = o / 4;
    const auto sum_of = [&](int offset) {
      const float* from = received + offset + wgmma_sum_index(token, row);
      float4 sum{0, 0, 0, 0};
#pragma unroll
      for (int s = 0; s < kQuantSlices; ++s) {
        const float4 slice = *reinterpret_cast<const float4*>(from + s * kSums);
        sum.x += slice.x, sum.y += slice.y;
        sum.z += slice.z, sum.w += slice.w;
      }
      return sum;
    };
    const float4 sum = sum_of(0);
    const float4 up = gated ? sum_of(kSums / 2) : float4{0, 0, 0, 0};
    finish_four(a, part, group * 16 + row, first_token + token, sum, up);
  }
}

#endif

template <class Block, int kTokens>
__global__ void __launch_bounds__(wgmma_threads(kTokens), kTokens <= 32 ? 2 : 1)
    quant_linear_wgmma_kernel(const __grid_constant__ QuantArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Format = TileFormat<Block>;
  using Shape = WgmmaShape<Block>;
  extern __shared__ __align__(1024) uint8_t shared[];  // the swizzle of x depends on addresses
  auto& barriers = *reinterpret_cast<WgmmaBarriers*>(shared + a.shared.barriers);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(blockIdx.x) % kQuantSlices;
  const int first_set = static_cast<int>(blockIdx.x) / kQuantSlices;
  const int set_step = static_cast<int>(gridDim.x) / kQuantSlices;
  const int begin = Shape::slice_begin(a, rank), end = Shape::slice_begin(a, rank + 1);
  const bool multiplies = warp < kWgmmaWarps;
  if (threadIdx.x == 0) {
    init_barrier(shared_address(&barriers.received), 1);
    init_barrier(shared_address(&barriers.taken), kQuantSlices * wgmma_finish_warps(kTokens));
    publish_barriers();
  }
  arrive_in_cluster();

  uint8_t* buffers =
      shared + a.shared.ring + (multiplies ? warp : 0) * a.stages * Shape::kStageBytes;
  // Warps that finish outputs have no ring and do not touch it.
  WeightRing ring(barriers.ring[multiplies ? warp : 0], multiplies ? a.stages : 0, lane);
  int fetch_set = first_set, fetch_block = begin, fetch_stage = 0;
  const auto fetch = [&] {
    if (fetch_set < a.sets && begin < end) {
      const int item = fetch_set * kWgmmaWarps + warp;
      const uint32_t bytes = min(Shape::kChunkBlocks, end - fetch_block) * Format::kUnitBytes;
      ring.begin(fetch_stage, item < a.items ? bytes : 0);
      if (item < a.items) {
        int part, group;
        locate_item(a, item, part, group);
        ring.copy(fetch_stage, buffers + fetch_stage * Shape::kStageBytes,
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
    fetch_stage = fetch_stage + 1 == a.stages ? 0 : fetch_stage + 1;
  };
  if (multiplies) {
#pragma unroll 1
    for (int i = 0; i < a.stages; ++i) fetch();
  }
  launch_dependents();
  wait_for_previous();
  stage_wgmma_x<Block, kTokens>(a, begin * Format::kTiles, (end - begin) * Format::kTiles,
                                shared + a.shared.x, warp, lane);
  __syncthreads();
  wait_for_cluster();  // the barriers of all thread blocks are initialized

  constexpr int kSums = 16 * kTokens;
  float* received = reinterpret_cast<float*>(shared + a.shared.received);
  int turn = 0;
  if (multiplies) {
    WgmmaSums<Block, kTokens> products(shared + a.shared.x, lane);
    __half2* prepared = reinterpret_cast<__half2*>(shared + a.shared.prepared) +
                        warp * (Format::kPreparedValues / 2);
    float* sums = reinterpret_cast<float*>(shared + a.shared.sums) + warp * kSums;
    int stage = 0;
    uint32_t parity = 0;
    for (int set = first_set; set < a.sets; set += set_step, ++turn) {
      products.clear();
      for (int block = begin; block < end; block += Shape::kChunkBlocks) {
        ring.wait(stage, parity);
        products.add(buffers + stage * Shape::kStageBytes, (block - begin) * Format::kTiles,
                     min(Shape::kChunkBlocks, end - block), prepared);
        ring.release();
        fetch();
        if (++stage == a.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      if (turn > 0) wait_for_cluster(&barriers.taken, (turn - 1) & 1);
      products.finish(sums);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncwarp();
      if (lane == 0) send_sums<kTokens>(a, sums, received, &barriers.received, rank, warp);
    }
  } else {
    const int thread = static_cast<int>(threadIdx.x) - kWgmmaWarps * 32;
    for (int set = first_set; set < a.sets; set += set_step, ++turn) {
      if (thread == 0) {
        arrive_and_expect(shared_address(&barriers.received), kQuantSlices * kSums * 4);
      }
      wait_for_cluster(&barriers.received, turn & 1);
      finish_wgmma_set<kTokens>(a, set, received, rank, thread);
      __syncwarp();
      // Not after the last set: a thread block that has exited has no barrier any more.
      if (set + set_step < a.sets && lane < kQuantSlices) arrive_in(&barriers.taken, lane);
    }
  }
  // A thread block must not exit while what it has sent may still be in flight.
  arrive_in_cluster();
  wait_for_cluster();
#endif
}

}  // namespace spillway::cuda
