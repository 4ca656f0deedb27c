// SPDX-License-Identifier: Apache-2.0
// Flat GEMM (FlashDecoding++, section 4) at the speed of memory: one thread block per
// multiprocessor, all with the same share of the weights, whose ring in shared memory never runs
// dry.
//
// The weights are cut into tiles of 32 rows per warp and steps of 64 columns; thread block b of B
// takes items [b, b + 1) * tiles * steps / B of that list, tile by tile. One warp copies up to S
// steps ahead, across the ends of tiles, so that about 100 KiB per multiprocessor are always in
// flight. It uses tensor copies, which do not delay the other warps' loads from the ring (with
// cp.async a deeper ring was slower). If several thread blocks share a tile, their sums go to the
// scratch memory, and the last one to finish adds them up in the order of thread blocks.
//
// For a slice of a matrix, the tiles, items and thread blocks are those of the whole matrix: thread
// blocks that have no tile of the slice are not launched, and in a tile at its ends the rows
// outside are zeros that are not stored.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "cuda/kernel/async_copy.cuh"
#include "cuda/linear/linear.h"
#include "cuda/linear/linear_flat.cuh"
#include "cuda/tensor_map.h"

namespace spillway::cuda {
namespace {

constexpr uint32_t kAlignment = 1024;  // of the ring: the swizzle of chunks depends on addresses

// Deals items to thread blocks.
struct Shares {
  int64_t items;
  int blocks;
  __device__ int64_t first_of(int block) const { return block * items / blocks; }
  __device__ int block_of(int64_t item) const {
    return static_cast<int>(((item + 1) * blocks - 1) / items);
  }
};

// Returns whether this thread block is the last of a tile's to finish; then `sum` is the sum over
// all of them. A thread block shares at most two tiles: the one in which it begins (slot 0) and the
// one in which it ends.
template <int NT, int W>
__device__ __forceinline__ bool add_slices(float (&sum)[2][NT][4], const Shares& shares, int block,
                                           int tile, int steps, std::byte* scratch) {
  const int64_t begin = int64_t{tile} * steps;
  const int first = shares.block_of(begin), last = shares.block_of(begin + steps - 1);
  if (first == last) return true;
  constexpr int kThreads = 32 * W, kFours = 2 * NT;
  const auto meet = [] { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); };
  __shared__ bool is_last;
  const int thread = threadIdx.x;
  const auto slot = [&](int of) {
    const bool ends_here = of == first && shares.first_of(of) < begin;
    return reinterpret_cast<float4*>(scratch + kScratchCounterBytes) +
           int64_t{2 * of + ends_here} * (kFours * kThreads) + thread;
  };
  float4* const mine = slot(block);
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    const float(&s)[4] = sum[f / NT][f % NT];
    __stcg(mine + f * kThreads, make_float4(s[0], s[1], s[2], s[3]));
  }
  __threadfence();
  meet();
  if (thread == 0) {
    uint32_t* const counter = reinterpret_cast<uint32_t*>(scratch) + tile;
    is_last = atomicAdd(counter, 1) == static_cast<uint32_t>(last - first);
    if (is_last) *counter = 0;
  }
  meet();
  if (!is_last) return false;
  __threadfence();
  constexpr int kAhead = 16 / NT;  // thread blocks whose sums are in flight
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float4 total[NT];
#pragma unroll
    for (int j = 0; j < NT; ++j) total[j] = make_float4(0, 0, 0, 0);
    for (int next = first; next <= last; next += kAhead) {
      float4 part[kAhead][NT];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const float4* const from = slot(min(next + a, last)) + i * NT * kThreads;
#pragma unroll
        for (int j = 0; j < NT; ++j) part[a][j] = __ldcg(from + j * kThreads);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (next + a > last) break;
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          total[j].x += part[a][j].x, total[j].y += part[a][j].y;
          total[j].z += part[a][j].z, total[j].w += part[a][j].w;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      sum[i][j][0] = total[j].x, sum[i][j][1] = total[j].y;
      sum[i][j][2] = total[j].z, sum[i][j][3] = total[j].w;
    }
  }
  return true;
}

// The matrices that thread blocks copy from, in boxes of a whole tile's rows (gated: half a tile's)
// and of all tokens.
struct StreamMaps {
  CUtensorMap weights[3];
  CUtensorMap x;
};

// The whole matrices that a call has slices of, and the part of the work that this launch does.
struct StreamWhole {
  int n[3];      // rows
  int first[3];  // the row of each that the slice begins with
  int tiles, blocks;
  int first_tile, end_tile, first_block;
};

// The size of a thread block's ring. With kSharedBytes no two thread blocks fit on a
// multiprocessor: where one ends, one of the next kernel starts to fill its ring, the same on every
// multiprocessor. When two fitted, multiprocessors that were free first got two and others none;
// H200, Llama-2-7B: with one, 8 sequences decode 7.5% faster, 32 sequences 5%. The rest is for
// attention's thread blocks.
constexpr int kRingBytes = 108 << 10;
constexpr int kSharedBytes = 116 << 10;
constexpr int stage_bytes(int warps, int token_tiles) {
  return (32 * warps + 8 * token_tiles) * kRowBytes;
}
constexpr int stages_of(int warps, int token_tiles) {
  return std::min(10, kRingBytes / stage_bytes(warps, token_tiles));
}

// NT tiles of 8 tokens; W warps multiply and one copies. Registers are limited as for two thread
// blocks: half is for the kernels between linear layers, which run beside this one.
template <class T, int NT, int W>
__global__ void __launch_bounds__(32 * (W + 1), NT* W < 48 ? 2 : 1)
    stream_kernel(const __grid_constant__ LinearParams p, const __grid_constant__ StreamMaps maps,
                  const __grid_constant__ StreamWhole whole, std::byte* scratch) {
#if __CUDA_ARCH__ >= 900
  constexpr int kRows = 32 * W, S = stages_of(W, NT);
  constexpr uint32_t kStageBytes = stage_bytes(W, NT);
  extern __shared__ std::byte shared_memory[];
  __shared__ uint64_t barriers[2 * S];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool gated = p.epilogue == Epilogue::kGated;
  const int steps = (p.k + kStepColumns - 1) / kStepColumns;
  const Shares shares{int64_t{whole.tiles} * steps, whole.blocks};
  const int block = whole.first_block + static_cast<int>(blockIdx.x);
  const int64_t begin = max(shares.first_of(block), int64_t{whole.first_tile} * steps);
  const int64_t end = min(shares.first_of(block + 1), int64_t{whole.end_tile} * steps);
  const int count = static_cast<int>(end - begin);
  int tile = static_cast<int>(begin / steps), step = static_cast<int>(begin % steps);
  const uint32_t ring = (shared_address(shared_memory) + kAlignment - 1) / kAlignment * kAlignment;
  const auto full = [&](int stage) { return shared_address(barriers + stage); };
  const auto empty = [&](int stage) { return shared_address(barriers + S + stage); };
  // Returns the tile's rows in the slice: the first may be before it.
  const auto place = [&](int of) {
    const int rows = gated ? kRows / 2 : kRows;
    int part = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int here = (whole.n[i] + rows - 1) / rows;
      if (!gated && part == i && i + 1 < p.count && of >= here) {
        of -= here;
        part = i + 1;
      }
    }
    return RowPlace{part, of * rows - whole.first[part]};
  };
  if (threadIdx.x == 0) {
    for (int s = 0; s < S; ++s) init_barrier(full(s), 1), init_barrier(empty(s), W);
    publish_barriers();
  }
  __syncthreads();

  if (warp == W) {
    if (lane != 0) return;
    RowPlace at = place(tile);
    const auto copy_weights = [&](int stage) {
      const uint32_t to = ring + stage * kStageBytes;
      arrive_and_expect(full(stage), kStageBytes);
      copy_box<true>(to, maps.weights[at.part], step * kStepColumns, at.row, full(stage));
      if (gated) {
        copy_box<true>(to + kRows / 2 * kRowBytes, maps.weights[1], step * kStepColumns, at.row,
                       full(stage));
      }
      if (++step == steps) step = 0, at = place(++tile);
    };
    int x_step = step;
    const auto copy_x = [&](int stage) {
      copy_box(ring + stage * kStageBytes + kRows * kRowBytes, maps.x, x_step * kStepColumns, 0,
               full(stage));
      x_step = x_step + 1 == steps ? 0 : x_step + 1;
    };
    for (int s = 0; s < min(S, count); ++s) copy_weights(s);
    wait_for_previous();
    for (int s = 0; s < min(S, count); ++s) copy_x(s);
    uint32_t parity = 0;
    for (int item = S, stage = 0; item < count; ++item) {
      wait_barrier(empty(stage), parity);
      copy_weights(stage);
      copy_x(stage);
      if (++stage == S) stage = 0, parity ^= 1;
    }
    launch_dependents();
    return;
  }

  wait_for_previous();  // the previous kernel may still read what this one overwrites
  const uint32_t tile0 = (gated ? 16 : 32) * warp * kRowBytes;
  const uint32_t tile1 = tile0 + (gated ? kRows / 2 : 16) * kRowBytes;
  float sum[2][NT][4] = {};
  uint32_t parity = 0;
  for (int item = 0, stage = 0; item < count; ++item) {
    wait_barrier(full(stage), parity);
    const uint32_t at = ring + stage * kStageBytes;
    multiply_stage<T, NT>(sum, at + tile0, at + tile1, at + kRows * kRowBytes, lane);
    __syncwarp();
    if (lane == 0) arrive(empty(stage));
    if (++stage == S) stage = 0, parity ^= 1;
    if (++step < steps && item + 1 < count) continue;
    if (add_slices<NT, W>(sum, shares, block, tile, steps, scratch)) {
      store_tile<NT>(p, sum, place(tile), 0, p.tokens);
    }
#pragma unroll
    for (int i = 0; i < 2 * NT * 4; ++i) sum[i / (4 * NT)][i / 4 % NT][i % 4] = 0;
    ++tile;
    step = 0;
  }
#endif
}

constexpr int kWarps[] = {2, 3, 4, 6};  // of each variant
constexpr int kBarrierBytes = 1024;     // an upper bound of the static shared memory
constexpr int kShapeCount = sizeof(kWarps) / sizeof(kWarps[0]);

constexpr int shared_bytes(int warps, int token_tiles) {
  const int ring = stages_of(warps, token_tiles) * stage_bytes(warps, token_tiles);
  return std::max(ring + int(kAlignment), kSharedBytes);
}

// Returns the number of thread blocks: with at most as many tiles as multiprocessors, the same
// number for each tile (often one: a tile that is not split need not be added up), unless more than
// 30% of the multiprocessors would idle. Otherwise one per multiprocessor.
int blocks_for(int64_t tiles, int64_t steps, int sms) {
  int64_t blocks = sms;
  if (tiles <= sms) blocks = sms / tiles * tiles;
  if (blocks * 10 < int64_t{sms} * 7) blocks = sms;
  return static_cast<int>(std::clamp<int64_t>(tiles * steps / 4, 1, blocks));
}

template <class T, int NT, int Index>
void launch_shape(const LinearParams& p, StreamWhole whole, int splits,
                  const LinearScratch& scratch, const GpuShape& gpu, cudaStream_t stream) {
  constexpr int warps = kWarps[Index], rows = 32 * warps;
  constexpr int bytes = shared_bytes(warps, NT);
  constexpr auto kernel = stream_kernel<T, NT, warps>;
  const int tile_rows = p.epilogue == Epilogue::kGated ? rows / 2 : rows;
  const int steps = (p.k + kStepColumns - 1) / kStepColumns;
  const auto tiles_of = [&](int count) { return (count + tile_rows - 1) / tile_rows; };
  const int parts = p.epilogue == Epilogue::kGated ? 1 : p.count;
  whole.tiles = 0;
  for (int i = 0; i < parts; ++i) whole.tiles += tiles_of(whole.n[i]);
  const size_t slot = size_t(rows) * 8 * NT * sizeof(float);
  int blocks = splits > 0 ? splits : blocks_for(whole.tiles, steps, gpu.sms);
  // If the scratch is too small, fewer thread blocks are used; a single one shares no tile and
  // needs none.
  const size_t room =
      scratch.bytes > kScratchCounterBytes ? scratch.bytes - kScratchCounterBytes : 0;
  const int64_t most =
      std::min(int64_t{whole.tiles} * steps, static_cast<int64_t>(room / (2 * slot)));
  whole.blocks = blocks = static_cast<int>(std::clamp<int64_t>(most, 1, blocks));
  SPW_ASSERT(whole.tiles <= int(kScratchCounterBytes / sizeof(uint32_t)));
  // This is set per device and is cheap; a graph does not record it.
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const DType type = std::is_same_v<T, __half> ? DType::kF16 : DType::kBF16;
  StreamMaps maps = {};
  for (int i = 0; i < p.count; ++i) {
    if (p.part[i].n > 0)
      maps.weights[i] = make_tensor_map({type, p.part[i].w, p.part[i].n, p.k, p.k, tile_rows});
  }
  maps.x = make_tensor_map({type, p.x, p.tokens, p.k, p.x_stride, 8 * NT});
  const int64_t items = int64_t{whole.tiles} * steps;
  const auto block_of = [&](int64_t item) {
    return static_cast<int>(((item + 1) * blocks - 1) / items);
  };
  // Neighbouring tiles share a launch.
  const auto run_tiles = [&](int first, int end) {
    whole.first_tile = first;
    whole.end_tile = end;
    whole.first_block = block_of(int64_t{first} * steps);
    const int count = block_of(int64_t{end} * steps - 1) - whole.first_block + 1;
    launch(kernel, dim3(static_cast<unsigned>(count)), dim3(32 * (warps + 1)), bytes, stream, p,
           maps, whole, scratch.data);
  };
  int first = 0, end = 0;  // tiles that are not launched yet
  for (int i = 0, before = 0; i < parts; before += tiles_of(whole.n[i++])) {
    if (p.part[i].n == 0) continue;
    const int from = before + whole.first[i] / tile_rows,
              to = before + tiles_of(whole.first[i] + p.part[i].n);
    if (from != end && end > first) run_tiles(first, end);
    if (from != end) first = from;
    end = to;
  }
  if (end > first) run_tiles(first, end);
}

template <class T, int NT>
void launch_index(const LinearVariant& v, const LinearParams& p, const StreamWhole& whole,
                  const LinearScratch& scratch, const GpuShape& gpu, cudaStream_t stream) {
  const auto try_one = [&]<int I>(std::integral_constant<int, I>) {
    if (v.index == I) launch_shape<T, NT, I>(p, whole, v.splits, scratch, gpu, stream);
  };
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (try_one(std::integral_constant<int, I>()), ...);
  }
  (std::make_integer_sequence<int, kShapeCount>());
}

template <class T>
void run(const LinearParams& p, const LinearVariant& v, const StreamWhole& whole,
         const LinearScratch& scratch, const GpuShape& gpu, cudaStream_t stream) {
  switch (token_tiles(p.tokens)) {
    case 2:
      return launch_index<T, 2>(v, p, whole, scratch, gpu, stream);
    case 4:
      return launch_index<T, 4>(v, p, whole, scratch, gpu, stream);
    default:
      return launch_index<T, 8>(v, p, whole, scratch, gpu, stream);
  }
}

}  // namespace

int stream_variants() { return kShapeCount; }

std::string stream_variant_name(int index) { return fmt::format("stream r{}", 32 * kWarps[index]); }

bool stream_supports(int index, const LinearProblem& problem, const GpuShape& gpu) {
  if (index < 0 || index >= kShapeCount) return false;
  const int64_t most_tiles = kScratchCounterBytes / sizeof(uint32_t);
  const int bytes = shared_bytes(kWarps[index], token_tiles(problem.tokens)) + kBarrierBytes;
  return problem.dtype != DType::kF32 && problem.k % 8 == 0 && problem.tokens <= kFlatTokens &&
         gpu.compute_capability >= 90 && bytes <= gpu.shared_bytes && has_tensor_maps() &&
         problem.n / (16 * kWarps[index]) + 3 < most_tiles;
}

int plan_stream(const LinearProblem& problem, const GpuShape& gpu) {
  if (!stream_supports(0, problem, gpu)) return -1;
  // Low tiles do not keep their few warps busy (index 0). If every tile can have a multiprocessor
  // to itself and most multiprocessors have one, the lowest of these tiles are best: the fewer
  // rows, the sooner a thread block ends (H200, 12288 rows of 4096 columns: 26 us with 96 rows a
  // tile, 31 with 128).
  const auto tiles = [&](int index) { return problem.n / (32 * kWarps[index]); };
  const auto serves_most = [&](int index) { return tiles(index) * 10 >= int64_t{gpu.sms} * 7; };
  // With many tokens x leaves less room for the ring, and lower tiles win (32 tokens: 48.0 us
  // instead of 49.2 for 22016 x 4096, 13.5 instead of 14.0 for 4096 x 4096).
  const bool many = problem.tokens > 16;
  const int tallest = many ? 2 : kShapeCount - 1;
  for (int index = 1; index <= tallest; ++index) {
    if (serves_most(index) && tiles(index) <= gpu.sms) return index;
  }
  // Otherwise the tallest tiles that are numerous enough are best, as they read x least often;
  // otherwise several thread blocks share a tile.
  for (int index = tallest; index > 0; --index) {
    if (serves_most(index)) return index;
  }
  return problem.n < 1024 ? 0 : many ? 1 : 2;
}

void linear_stream(const LinearCall& call, const LinearVariant& variant,
                   const LinearScratch& scratch, const GpuShape& gpu, cudaStream_t stream) {
  const LinearProblem problem = problem_of(call);
  SPW_ASSERT(stream_supports(variant.index, problem, gpu));
  const LinearParams p = params_of(call);
  StreamWhole whole = {};
  for (int i = 0; i < call.count; ++i) {
    whole.n[i] = static_cast<int>(call.parts[i].w.whole_rows());
    whole.first[i] = static_cast<int>(call.parts[i].w.sliced_at);
  }
  if (problem.dtype == DType::kF16) {
    run<__half>(p, variant, whole, scratch, gpu, stream);
  } else {
    run<__nv_bfloat16>(p, variant, whole, scratch, gpu, stream);
  }
}

}  // namespace spillway::cuda
