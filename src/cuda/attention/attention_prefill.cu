// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/attention_prefill.h"

#include <algorithm>

#include "cuda/attention/attention_decode.h"
#include "cuda/attention/attention_prefill_codes.cuh"
#include "cuda/attention/attention_prefill_tile.cuh"
#include "cuda/attention/attention_prefill_wgmma.h"
#include "cuda/kernel/launch.cuh"

namespace spillway::cuda {
namespace {

// How far scores may exceed the maximum that exponentials are relative to before outputs are scaled
// again: a factor of 2^8 costs F16 nothing, and makes rescaling rare.
constexpr float kRescaleAt = 8;

// A thread block has kWarps warps of kRowTiles * 16 rows, and kStages tiles of keys and values in
// shared memory.
template <KvType kType, int kDim, int kWarps, int kRowTiles, int kStages>
struct PrefillKernel {
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kRows = kWarps * kRowTiles * 16;
  static constexpr int kPitch = kDim + 8;  // an odd number of 16-byte chunks: no bank is hit twice
  static constexpr int kChunks = kDim / 8;

  // Quantized KV: single tiles, converted from copies of pages that arrive while the previous tile
  // is computed; values are transposed, as their codes are.
  static constexpr bool kCodes = is_quantized(kType);
  using Elements = MmaElements<kType>;
  using Codes = TileOfCodes<kType, kDim, kThreads>;
  static constexpr int kValueRows = kCodes ? kDim : kTileTokens;
  static constexpr int kValuePitch = kCodes ? Codes::kValuePitch : kPitch;

  struct Shared {
    __half queries[kRows][kPitch];
    __half keys[kStages][kTileTokens][kPitch];
    __half values[kStages][kValueRows][kValuePitch];
    typename Codes::Pages pages;
    int32_t blocks[2][kTileBlocks];
  };

  const PrefillArgs& a;
  const PrefillPlace& p;
  Shared& shared;

  __device__ __forceinline__ void stage_queries() {
    const int tid = static_cast<int>(threadIdx.x);
    const int dim = a.shape.head_dim;
    const std::byte* first = a.q + (p.first_row * a.q_stride + int64_t{p.head} * dim) * 2;
    for (int i = tid; i < kRows * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (row < p.rows && chunk * 8 < dim)
        x = load_query8<kType>(a, first + row * a.q_stride * 2, chunk * 8);
      *reinterpret_cast<uint4*>(&shared.queries[row][chunk * 8]) = x;
    }
    if constexpr (kType == KvType::kInt4) {
      // Queries are rotated in F32, as keys are. The tiles of keys are not in use yet.
      __syncthreads();
      const int warp = tid / kWarpSize, lane = tid % kWarpSize;
      float* x = reinterpret_cast<float*>(&shared.keys[0][0][0]) + warp * 256;
      static_assert(kWarps * 256 * 4 <= sizeof(Shared::keys));
      for (int row = warp; row < p.rows; row += kWarps) {
        for (int d = lane; d < dim; d += kWarpSize) x[d] = __half2float(shared.queries[row][d]);
        rotate_in_warp(x, dim, lane);
        for (int d = lane; d < dim; d += kWarpSize)
          shared.queries[row][d] = __float2half_rn(clamp_to_half(x[d]));
        __syncwarp();
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ int32_t block_of(int tile) const {
    const int block = tile * kTileBlocks + static_cast<int>(threadIdx.x);
    return threadIdx.x < kTileBlocks && block * kKvBlockTokens < p.end ? p.table[block] : 0;
  }

  // Issues copies of a tile's keys and values; its blocks are in shared.blocks[tile % 2].
  __device__ __forceinline__ void load_tile(int tile, int stage) {
    const int64_t head_at = int64_t{p.kv_head} * a.page_bytes;
    if constexpr (kCodes) {
      Codes::copy(a, head_at, shared.blocks[tile % 2], shared.pages);
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < kTileTokens * kChunks; i += kThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        const int position = tile * kTileTokens + row;
        const bool sees = position >= p.begin && position < p.end && chunk * 8 < a.shape.head_dim;
        const int token = row % kKvBlockTokens;
        const int64_t at = shared.blocks[tile % 2][row / kKvBlockTokens] * a.block_bytes + head_at +
                           token * a.shape.row_bytes + chunk * 16;
        copy_async16(&shared.keys[stage][row][chunk * 8], a.kv.given.k + (sees ? at : 0), sees);
        copy_async16(&shared.values[stage][row][chunk * 8], a.kv.given.v + (sees ? at : 0), sees);
      }
    }
    commit_copies();
  }

  __device__ __forceinline__ void run() {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int g = lane / 4, t = lane % 4;
    const int warp_row = warp * kRowTiles * 16;
    const int first_tile = p.begin / kTileTokens;
    const int last_tile = (p.end - 1) / kTileTokens;

    float out[kRowTiles][kDim / 8][4];
    float maximum[kRowTiles][2], sum[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out[m][n][j] = 0;
      }
      maximum[m][0] = maximum[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;
    }

    const int32_t first_blocks = block_of(first_tile);
    if (threadIdx.x < kTileBlocks) shared.blocks[first_tile % 2][threadIdx.x] = first_blocks;
    stage_queries();
    __syncthreads();
    int32_t next_blocks = block_of(first_tile + 1);
    if constexpr (kStages == 2 || kCodes) load_tile(first_tile, first_tile % kStages);
    if (threadIdx.x < kTileBlocks) shared.blocks[(first_tile + 1) % 2][threadIdx.x] = next_blocks;

    for (int tile = first_tile; tile <= last_tile; ++tile) {
      const int stage = tile % kStages;
      next_blocks = block_of(tile + 2);
      if constexpr (kStages == 1 && !kCodes) {
        __syncthreads();  // all warps are done with the previous tile
        load_tile(tile, 0);
      }
      wait_copies<0>();
      __syncthreads();
      if constexpr (kCodes) {
        Codes::convert(a, p, tile * kTileTokens, shared.pages, shared.keys[0], shared.values[0]);
        __syncthreads();
      }
      if constexpr (kStages == 2 || kCodes) {
        if (tile < last_tile) load_tile(tile + 1, (tile + 1) % kStages);
      }
      attend(tile, stage, warp_row, lane, g, t, out, maximum, sum);
      // The blocks of tile + 2 replace this tile's, which were read before the last barrier.
      if (threadIdx.x < kTileBlocks) shared.blocks[tile % 2][threadIdx.x] = next_blocks;
    }
    if (a.sums != nullptr) {
      store_sums(warp_row, g, t, out, maximum, sum);
    } else {
      store(warp_row, lane, g, t, out, sum);
    }
  }

  __device__ __forceinline__ void attend(int tile, int stage, int warp_row, int lane, int g, int t,
                                         float (&out)[kRowTiles][kDim / 8][4],
                                         float (&maximum)[kRowTiles][2],
                                         float (&sum)[kRowTiles][2]) {
    constexpr int kTokenTiles = kTileTokens / 8;
    const int first = tile * kTileTokens;
    if (first > p.position + warp_row + kRowTiles * 16 - 1)
      return;  // none of the warp's rows attends to it
    float s[kRowTiles][kTokenTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) s[m][n][j] = 0;
      }
    }
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      uint32_t q[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
        load_matrices(q[m], &shared.queries[warp_row + m * 16 + lane % 16][d + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < kTokenTiles; n += 2) {
        uint32_t k[4];
        load_matrices(k,
                      &shared.keys[stage][n * 8 + lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8]);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          Elements::mma(s[m][n], q[m][0], q[m][1], q[m][2], q[m][3], k[0], k[1]);
          Elements::mma(s[m][n + 1], q[m][0], q[m][1], q[m][2], q[m][3], k[2], k[3]);
        }
      }
    }

    const int begin_of_last = a.window > 0 ? p.position + p.rows - a.window : 0;
    const bool masked = first + kTileTokens - 1 > p.position || first < begin_of_last;
    if (masked) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row_position = p.position + warp_row + m * 16 + g + j / 2 * 8;
          const int row_begin = a.window > 0 ? row_position + 1 - a.window : 0;
#pragma unroll
          for (int n = 0; n < kTokenTiles; ++n) {
            const int position = first + n * 8 + 2 * t + j % 2;
            if (position > row_position || position < row_begin) s[m][n][j] = -INFINITY;
          }
        }
      }
    }

    bool exceeds = false;
    float largest[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        float x = -INFINITY;
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n)
          x = fmaxf(x, fmaxf(s[m][n][2 * upper], s[m][n][2 * upper + 1]));
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
        largest[m][upper] = x;
        exceeds |= (x - maximum[m][upper]) * a.scale_log2 > kRescaleAt;
      }
    }
    if (__ballot_sync(kAllLanes, exceeds) != 0) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          float& old = maximum[m][upper];
          const float x = largest[m][upper];
          // Decided row by row, whatever the other rows of the warp need.
          if (!((x - old) * a.scale_log2 > kRescaleAt)) continue;
          const float rescale = exp2_fast((old - x) * a.scale_log2);
          old = x;
          sum[m][upper] *= rescale;
#pragma unroll
          for (int n = 0; n < kDim / 8; ++n) {
            out[m][n][2 * upper] *= rescale;
            out[m][n][2 * upper + 1] *= rescale;
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const float top = maximum[m][upper];
        const float offset = top == -INFINITY ? 0 : top * a.scale_log2;
        float added = 0;
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[m][n][2 * upper + e];
            x = exp2_fast(fmaf(x, a.scale_log2, -offset));
            added += x;
          }
        }
        sum[m][upper] += added;  // over this lane's tokens
      }
    }

#pragma unroll
    for (int n = 0; n < kTokenTiles; n += 2) {
      uint32_t x[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          x[m][j] = Elements::pack(s[m][n + j / 2][j % 2 * 2], s[m][n + j / 2][j % 2 * 2 + 1]);
      }
#pragma unroll
      for (int d = 0; d < kDim / 8; d += 2) {
        uint32_t v[4];
        if constexpr (kCodes) {
          load_matrices(
              v, &shared.values[0][d * 8 + lane / 16 * 8 + lane % 8][n * 8 + lane / 8 % 2 * 8]);
        } else {
          load_matrices_transposed(v,
                                   &shared.values[stage][n * 8 + lane % 16][d * 8 + lane / 16 * 8]);
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          Elements::mma(out[m][d], x[m][0], x[m][1], x[m][2], x[m][3], v[0], v[1]);
          Elements::mma(out[m][d + 1], x[m][0], x[m][1], x[m][2], x[m][3], v[2], v[3]);
        }
      }
    }
  }

  // Does what rotate_kv() does to the outputs of rows g (upper 0) or g + 8 (1). In an element's
  // place in its group of 64, bit 0 is one of two registers, bits 1 and 2 are the lane's t, the
  // others the tile n.
  __device__ __forceinline__ void rotate(int upper, int t, float (&out)[kDim / 8][4]) {
#pragma unroll
    for (int first = 0; first < kDim / 8; first += 8) {
      constexpr int kTiles = kDim / 8;
      const int size = min(64, a.shape.head_dim - first * 8);
      const int run = size > 0 ? size & -size : 1;  // a multiple of 8, or nothing to do
      const float factor = rsqrtf(static_cast<float>(run));
#pragma unroll
      for (int n = first; n < first + 8 && n < kTiles; ++n) {
        float& x = out[n][2 * upper];
        float& y = out[n][2 * upper + 1];
        const float sum = x + y, difference = x - y;
        x = sum * factor;
        y = difference * factor;
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
          const float other_x = __shfl_xor_sync(kAllLanes, x, step);
          const float other_y = __shfl_xor_sync(kAllLanes, y, step);
          const bool second = (t & step) != 0;
          x = second ? other_x - x : x + other_x;
          y = second ? other_y - y : y + other_y;
        }
      }
#pragma unroll
      for (int step = 1; step < 8; step *= 2) {
        if (8 * step >= run) break;
#pragma unroll
        for (int n = first; n < first + 8; ++n) {
          if ((n & step) != 0 || n + step >= kTiles) continue;
#pragma unroll
          for (int e = 2 * upper; e < 2 * upper + 2; ++e) {
            const float x = out[n][e], y = out[n + step][e];
            out[n][e] = x + y;
            out[n + step][e] = x - y;
          }
        }
      }
    }
  }

  // Stores the rows' softmax states (SoftmaxState).
  __device__ __forceinline__ void store_sums(int warp_row, int g, int t,
                                             float (&out)[kRowTiles][kDim / 8][4],
                                             const float (&maximum)[kRowTiles][2],
                                             const float (&sum)[kRowTiles][2]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        float all = sum[m][upper];
        all += __shfl_xor_sync(kAllLanes, all, 1);
        all += __shfl_xor_sync(kAllLanes, all, 2);
        if constexpr (kType == KvType::kInt4) rotate(upper, t, out[m]);
        const int row = warp_row + m * 16 + g + upper * 8;
        if (row >= p.rows) continue;
        float* const to = a.sums_row(p.first_row + row) + p.head * a.shape.head_dim;
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          if (n * 8 >= a.shape.head_dim) break;
          *reinterpret_cast<float2*>(to + n * 8 + 2 * t) =
              make_float2(out[m][n][2 * upper], out[m][n][2 * upper + 1]);
        }
        if (t == 0) a.store_sum(p.first_row + row, p.head, maximum[m][upper] * a.scale_log2, all);
      }
    }
  }

  // Goes through the warp's own rows of shared.queries, so that rows are written in 16-byte chunks.
  __device__ __forceinline__ void store(int warp_row, int lane, int g, int t,
                                        float (&out)[kRowTiles][kDim / 8][4],
                                        float (&sum)[kRowTiles][2]) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        float all = sum[m][upper];
        all += __shfl_xor_sync(kAllLanes, all, 1);
        all += __shfl_xor_sync(kAllLanes, all, 2);
        const float inverse = 1 / all;
        if constexpr (kType == KvType::kInt4) rotate(upper, t, out[m]);
        __half* row = shared.queries[warp_row + m * 16 + g + upper * 8];
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          *reinterpret_cast<uint32_t*>(row + n * 8 + 2 * t) =
              pack_output2(a, out[m][n][2 * upper] * inverse, out[m][n][2 * upper + 1] * inverse);
        }
      }
    }
    __syncwarp();
    const int dim = a.shape.head_dim;
    const int rows = min(kRowTiles * 16, p.rows - warp_row);
    std::byte* first =
        a.out + ((p.first_row + warp_row) * a.out_stride + int64_t{p.head} * dim) * 2;
    for (int i = lane; i < rows * kChunks; i += kWarpSize) {
      const int row = i / kChunks, chunk = i % kChunks;
      if (chunk * 8 >= dim) continue;
      const uint4 x = *reinterpret_cast<const uint4*>(&shared.queries[warp_row + row][chunk * 8]);
      std::byte* to = first + row * a.out_stride * 2 + chunk * 16;
      if (a.whole_vectors) {
        *reinterpret_cast<uint4*>(to) = x;
      } else {
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 8; ++j)
          reinterpret_cast<uint16_t*>(to)[j] = static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16));
      }
    }
  }
};

template <KvType kType, int kDim, int kWarps, int kRowTiles, int kStages>
__global__ __launch_bounds__(kWarps* kWarpSize) void attention_prefill_kernel(
    const __grid_constant__ PrefillArgs a) {
  using Kernel = PrefillKernel<kType, kDim, kWarps, kRowTiles, kStages>;
  extern __shared__ __align__(16) std::byte shared_bytes[];
  launch_dependents();
  wait_for_previous();
  PrefillPlace p;
  if (!find_place(a, Kernel::kRows, p)) return;
  Kernel{a, p, *reinterpret_cast<typename Kernel::Shared*>(shared_bytes)}.run();
}

// Returns false if this GPU does not have enough shared memory for it.
template <KvType kType, int kDim, int kWarps, int kRowTiles, int kStages>
bool try_launch(const PrefillArgs& a, int heads, int max_rows, int shared_limit,
                cudaStream_t stream) {
  using Kernel = PrefillKernel<kType, kDim, kWarps, kRowTiles, kStages>;
  const auto kernel = attention_prefill_kernel<kType, kDim, kWarps, kRowTiles, kStages>;
  constexpr int kBytes = static_cast<int>(sizeof(typename Kernel::Shared));
  if (kBytes > shared_limit) return false;
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>(a.batch.sequences),
                  static_cast<unsigned>((max_rows + Kernel::kRows - 1) / Kernel::kRows));
  launch(kernel, grid, dim3(Kernel::kThreads), size_t{kBytes}, stream, a);
  return true;
}

template <KvType kType, int kDim>
bool try_launch_dim(const PrefillArgs& a, int heads, int max_rows, int shared_limit,
                    cudaStream_t stream) {
  // A thread block has 128 rows: with 32 per warp, keys and values are read from shared memory half
  // as often.
  constexpr int kWarps = kDim <= 128 ? 4 : 8, kRowTiles = kDim <= 128 ? 2 : 1;
  constexpr int kStages = is_half(kType) ? 2 : 1;
  if (try_launch<kType, kDim, kWarps, kRowTiles, kStages>(a, heads, max_rows, shared_limit, stream))
    return true;
  if constexpr (is_half(kType) && kDim <= 128)
    return try_launch<kType, kDim, 4, 1, 1>(a, heads, max_rows, shared_limit, stream);
  return false;
}

template <KvType kType>
bool try_launch_type(const PrefillArgs& a, int heads, int max_rows, int shared_limit,
                     cudaStream_t stream) {
  const int dim = a.shape.head_dim;
  if (dim <= 64) return try_launch_dim<kType, 64>(a, heads, max_rows, shared_limit, stream);
  if (dim <= 80) return try_launch_dim<kType, 80>(a, heads, max_rows, shared_limit, stream);
  if (dim <= 96) return try_launch_dim<kType, 96>(a, heads, max_rows, shared_limit, stream);
  if (dim <= 128) return try_launch_dim<kType, 128>(a, heads, max_rows, shared_limit, stream);
  return try_launch_dim<kType, 256>(a, heads, max_rows, shared_limit, stream);
}

bool has_bf16_products(int device) {
  int major = 0;
  SPW_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 8;
}

bool starts_whole(const Activations& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0;
}

}  // namespace

size_t attention_prefill_scratch_bytes() { return 2 * sizeof(int32_t); }

void attention_prefill(const AttentionCall& call, const UnifiedMax& unified, int max_rows,
                       const AttentionScratch& scratch, cudaStream_t stream,
                       const PrefillVariant& variant) {
  if (call.batch.sequences == 0 || max_rows == 0) return;
  const KvLayerView& kv = call.kv;
  if (call.q.dtype == DType::kF32 || kv.type == KvType::kF32)
    return attention_rows(call, max_rows, stream);
  PrefillArgs a{attention_args(call)};
  a.whole_vectors = starts_whole(call.q) && (call.sums != nullptr || starts_whole(call.out));
  auto* const counters = reinterpret_cast<int32_t*>(
      scratch.bytes >= attention_prefill_scratch_bytes() ? scratch.data : nullptr);
  if (try_attention_wgmma(call, a, unified, max_rows, counters, variant, stream)) return;
  int device = 0, shared_limit = 0;
  SPW_CUDA_CHECK(cudaGetDevice(&device));
  SPW_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const int heads = call.params.heads;
  bool launched = false;
  switch (kv.type) {
    case KvType::kF16:
      launched = try_launch_type<KvType::kF16>(a, heads, max_rows, shared_limit, stream);
      break;
    case KvType::kBf16:
      launched = has_bf16_products(device) &&
                 try_launch_type<KvType::kBf16>(a, heads, max_rows, shared_limit, stream);
      break;
    case KvType::kInt8:
      launched = try_launch_type<KvType::kInt8>(a, heads, max_rows, shared_limit, stream);
      break;
    case KvType::kInt4:
      launched = try_launch_type<KvType::kInt4>(a, heads, max_rows, shared_limit, stream);
      break;
    case KvType::kF32:
      break;
  }
  if (!launched) attention_rows(call, max_rows, stream);
}

}  // namespace spillway::cuda
