// SPDX-License-Identifier: Apache-2.0
// Prefill attention on Hopper: F16 KV, heads of 128.
//
// A block takes 128 rows of one head, 64 for each of two warpgroups; one more warp brings tiles of
// 128 keys and values to shared memory, page by page, by tensor copies. While one warpgroup
// computes exponents the other's products keep the tensor cores busy. Online softmax as in
// attention_prefill.cu, with the same lazy rescaling.
#include "cuda/async_copy.cuh"
#include "cuda/attention_prefill_tile.cuh"
#include "cuda/attention_prefill_wgmma.h"
#include "cuda/launch.cuh"
#include "cuda/tensor_map.h"
#include "cuda/wgmma.cuh"

namespace spillway::cuda {
namespace {

constexpr int kDim = 128, kTokens = 128, kStages = 2, kGroups = 2, kRows = 64 * kGroups;
constexpr int kPages = kTokens / kKvBlockTokens;
constexpr int kConsumers = 128 * kGroups;
constexpr int kThreads = kConsumers + 128;      // registers are given away by whole warpgroups
constexpr uint32_t kHalfBytes = kTokens * 128;  // 64 dims of a tile; of the queries as well
constexpr uint32_t kTileBytes = 2 * kHalfBytes;
constexpr uint32_t kAlignment = 1024;
constexpr uint32_t kSharedBytes = (1 + 2 * kStages) * kTileBytes + kAlignment;
static_assert(kRows == kTokens, "queries lie as a tile does");
constexpr float kRescaleAt = 8;  // see attention_prefill.cu

struct KvMaps {
  CUtensorMap k, v;  // [blocks * kv_heads * 16][128], boxes of a page's half
  int rows;
};

struct Barriers {
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
};

__device__ __forceinline__ uint32_t shared32(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Rows of the tile that nobody sees are zeros: pages that are not there, by a row behind the last.
__device__ __forceinline__ void copy_tile(const PrefillArgs& a, const PrefillPlace& p,
                                          const CUtensorMap& map, int rows, int tile, uint32_t to,
                                          uint32_t full) {
#if __CUDA_ARCH__ >= 900
  arrive_and_expect(full, kTileBytes);
#pragma unroll 1
  for (int page = 0; page < kPages; ++page) {
    const int position = tile * kTokens + page * kKvBlockTokens;
    const bool seen = position < p.end && position + kKvBlockTokens > p.begin;
    const int row =
        seen ? (p.table[position / kKvBlockTokens] * a.kv_heads + p.kv_head) * kKvBlockTokens
             : rows;
    copy_box(to + page * kKvBlockTokens * 128, map, 0, row, full);
    copy_box(to + kHalfBytes + page * kKvBlockTokens * 128, map, 64, row, full);
  }
#endif
}

__global__ __launch_bounds__(kThreads,
                             1) void attention_wgmma_kernel(const __grid_constant__ PrefillArgs a,
                                                            const __grid_constant__ KvMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte shared_bytes[];
  __shared__ Barriers barriers;
  let_next_start();
  wait_for_previous();
  PrefillPlace p;
  if (!find_place(a, kRows, p)) return;
  const uint32_t queries = (shared32(shared_bytes) + kAlignment - 1) / kAlignment * kAlignment;
  std::byte* const memory = shared_bytes + (queries - shared32(shared_bytes));
  const auto keys = [&](int stage) { return queries + (1 + 2 * stage) * kTileBytes; };
  const auto values = [&](int stage) { return queries + (2 + 2 * stage) * kTileBytes; };
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) {
      init_barrier(shared32(&barriers.keys_full[s]), 1);
      init_barrier(shared32(&barriers.values_full[s]), 1);
      init_barrier(shared32(&barriers.keys_empty[s]), kConsumers / kWarpSize);
      init_barrier(shared32(&barriers.values_empty[s]), kConsumers / kWarpSize);
    }
    publish_barriers();
  }
  __syncthreads();
  const int first_tile = p.begin / kTokens, last_tile = (p.end - 1) / kTokens;

  if (thread >= kConsumers) {
    give_registers<24>();
    if (thread != kConsumers) return;
    int stage = 0;
    uint32_t parity = 1;  // the first round waits for nobody
    for (int tile = first_tile; tile <= last_tile; ++tile) {
      wait_barrier(shared32(&barriers.keys_empty[stage]), parity);
      copy_tile(a, p, maps.k, maps.rows, tile, keys(stage), shared32(&barriers.keys_full[stage]));
      wait_barrier(shared32(&barriers.values_empty[stage]), parity);
      copy_tile(a, p, maps.v, maps.rows, tile, values(stage),
                shared32(&barriers.values_full[stage]));
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
    return;
  }

  take_registers<240>();
  // Queries, as a tensor copy would leave them.
  const std::byte* const first = a.q + (p.first_row * a.q_stride + int64_t{p.head} * kDim) * 2;
  for (int i = thread; i < kRows * (kDim / 8); i += kConsumers) {
    const int row = i / (kDim / 8), chunk = i % (kDim / 8);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row < p.rows) x = load_query8(a, first + row * a.q_stride * 2, chunk * 8);
    *reinterpret_cast<uint4*>(memory + chunk / 8 * kHalfBytes + row * 128 +
                              ((chunk % 8) ^ (row % 8)) * 16) = x;
  }
  const auto meet = [] {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
  };
  meet();

  const int group = thread / 128, g = lane / 4, t = lane % 4;
  const int row0 = group * 64 + warp % 4 * 16 + g;  // of the block; the other is 8 behind it
  const int last_position = p.position + group * 64 + 63;
  const uint32_t my_queries = queries + group * 64 * 128;
  float out[64], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 64; ++i) out[i] = 0;

  int stage = 0;
  uint32_t parity = 0;
  for (int tile = first_tile; tile <= last_tile; ++tile) {
    const int first_token = tile * kTokens;
    const bool seen = first_token <= last_position;  // by any of the warpgroup's rows
    wait_barrier(shared32(&barriers.keys_full[stage]), parity);
    float s[64];
    if (seen) {
      wgmma_fence();
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        const uint32_t at = d / 4 * kHalfBytes + d % 4 * 32;
        wgmma_rows(s, matrix_descriptor(my_queries + at), matrix_descriptor(keys(stage) + at),
                   d > 0);
      }
      wgmma_commit();
      wgmma_wait(s);
    }
    __syncwarp();
    if (lane == 0) arrive(shared32(&barriers.keys_empty[stage]));
    wait_barrier(shared32(&barriers.values_full[stage]), parity);
    if (tile == last_tile && p.end % kKvBlockTokens != 0) {
      // What nobody has written may be anything, NaN too: zeros instead.
      const int begin = p.end - first_token;
      const int unwritten = kKvBlockTokens - p.end % kKvBlockTokens;
      for (int i = thread; i < unwritten * (kDim / 8); i += kConsumers) {
        const int row = begin + i / (kDim / 8), chunk = i % (kDim / 8);
        *reinterpret_cast<uint4*>(memory + (values(stage) - queries) + chunk / 8 * kHalfBytes +
                                  row * 128 + (chunk % 8) * 16) = make_uint4(0, 0, 0, 0);
      }
      meet();
    }
    if (seen) {
      const int begin_of_last = a.window > 0 ? p.end - a.window : 0;
      const bool masked =
          first_token + kTokens - 1 > p.position + group * 64 || first_token < begin_of_last;
      if (masked) {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
          const int row_position = p.position + row0 + i / 2 % 2 * 8;
          const int row_begin = a.window > 0 ? row_position + 1 - a.window : 0;
          const int position = first_token + i / 4 * 8 + 2 * t + i % 2;
          if (position > row_position || position < row_begin) s[i] = -INFINITY;
        }
      }
      float largest[2];
      bool exceeds = false;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float x = -INFINITY;
#pragma unroll
        for (int j = 0; j < 16; ++j) x = fmaxf(x, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
        largest[h] = x;
        exceeds |= (x - maximum[h]) * a.scale_log2 > kRescaleAt;
      }
      if (__ballot_sync(kAllLanes, exceeds) != 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          // By row, whatever the others of the warp need.
          if (!((largest[h] - maximum[h]) * a.scale_log2 > kRescaleAt)) continue;
          const float rescale = exp2_fast((maximum[h] - largest[h]) * a.scale_log2);
          maximum[h] = largest[h];
          sum[h] *= rescale;
#pragma unroll
          for (int j = 0; j < 16; ++j)
            out[4 * j + 2 * h] *= rescale, out[4 * j + 2 * h + 1] *= rescale;
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float offset = maximum[h] == -INFINITY ? 0 : maximum[h] * a.scale_log2;
        float added = 0;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[4 * j + 2 * h + e];
            x = exp2_fast(fmaf(x, a.scale_log2, -offset));
            added += x;
          }
        }
        sum[h] += added;  // of this lane's tokens
      }
      uint32_t exponents[kTokens / 16][4];
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          exponents[k][j] = pack_half2(s[8 * k + 2 * j], s[8 * k + 2 * j + 1]);
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) {
        wgmma_columns(out, exponents[k],
                      matrix_descriptor(values(stage) + k * 16 * 128, kHalfBytes));
      }
      wgmma_commit();
      wgmma_wait(out);
    }
    __syncwarp();
    if (lane == 0) arrive(shared32(&barriers.values_empty[stage]));
    if (++stage == kStages) stage = 0, parity ^= 1;
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float all = sum[h];
    all += __shfl_xor_sync(kAllLanes, all, 1);
    all += __shfl_xor_sync(kAllLanes, all, 2);
    const float inverse = all > 0 ? 1 / all : 0;
    const int row = row0 + 8 * h;
    if (row >= p.rows) continue;
    std::byte* const to = a.out + ((p.first_row + row) * a.out_stride + int64_t{p.head} * kDim) * 2;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      *reinterpret_cast<uint32_t*>(to + (8 * j + 2 * t) * 2) =
          pack_output2(a, out[4 * j + 2 * h] * inverse, out[4 * j + 2 * h + 1] * inverse);
    }
  }
#endif
}

}  // namespace

bool try_attention_wgmma(const AttentionCall& call, const PrefillArgs& a, int max_rows,
                         cudaStream_t stream) {
  const KvLayerView& kv = call.kv;
  if (kv.type != KvType::kF16 || kv.head_dim != kDim || !a.whole_vectors || !has_tensor_maps())
    return false;
  const int64_t rows = kv.blocks * kv.kv_heads * kKvBlockTokens;
  if (rows >= INT32_MAX) return false;
  // Only code for sm_90a has these instructions.
  cudaFuncAttributes attributes = {};
  SPW_CUDA_CHECK(cudaFuncGetAttributes(&attributes, attention_wgmma_kernel));
  if (attributes.binaryVersion != 90) return false;
  const auto map = [&](const std::byte* data) {
    return make_tensor_map({DType::kF16, data, rows, kDim, kDim, kKvBlockTokens});
  };
  const KvMaps maps{map(kv.k), map(kv.v), static_cast<int>(rows)};
  SPW_CUDA_CHECK(cudaFuncSetAttribute(attention_wgmma_kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const dim3 grid(static_cast<unsigned>(call.params.heads),
                  static_cast<unsigned>((max_rows + kRows - 1) / kRows),
                  static_cast<unsigned>(a.batch.sequences));
  launch(attention_wgmma_kernel, grid, dim3(kThreads), kSharedBytes, stream, a, maps);
  return true;
}

}  // namespace spillway::cuda
