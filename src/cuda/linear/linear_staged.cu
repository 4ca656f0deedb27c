// SPDX-License-Identifier: Apache-2.0
// Flat GEMM (FlashDecoding++, section 4) for more tokens: weights and x go through a ring of
// buffers in shared memory (the paper's double buffering, several steps deep), because x is then
// too large to be read again by every warp.
//
// A thread block takes 32 rows per warp, all tokens (up to 64) and, where there are too few rows
// for all multiprocessors, one of several splits of the columns; the thread block that finishes a
// tile last adds up the splits, always in the same order. Buffers hold rows of 64 columns = 8
// chunks of 16 bytes, with chunk c of row r at place c ^ (r % 8), so that neither copies nor
// ldmatrix have bank conflicts.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "cuda/linear/linear.h"
#include "cuda/linear/linear_flat.cuh"

namespace spillway::cuda {
namespace {

constexpr int kMaxCounters = kScratchCounterBytes / sizeof(uint32_t);  // one per tile that is split
constexpr int kMaxSplits = 16;
constexpr size_t kDeclaredBytes = 16;  // upper bound of the static shared memory (finish_tile)

// NT tiles of 8 tokens, W warps, S steps in the ring. blockIdx.x = tile * splits + split;
// blockIdx.y is the group of 8 NT tokens.
template <class T, int NT, int W, int S>
__global__ void __launch_bounds__(32 * W)
    staged_kernel(const __grid_constant__ LinearParams p, int splits, std::byte* scratch) {
  constexpr int kRows = 32 * W, kTokens = 8 * NT, kThreads = 32 * W;
  constexpr int kStageBytes = (kRows + kTokens) * kRowBytes;
  extern __shared__ __align__(1024) std::byte ring[];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int tile = blockIdx.x / splits, split = blockIdx.x % splits;
  const bool gated = p.epilogue == Epilogue::kGated;
  const RowPlace place = place_of(p, tile, gated ? kRows / 2 : kRows);
  const int n = p.part[place.part].n;
  const int token0 = blockIdx.y * kTokens, tokens = min(kTokens, p.tokens - token0);
  const int all_steps = (p.k + kStepColumns - 1) / kStepColumns;
  const int first = static_cast<int>(int64_t{split} * all_steps / splits);
  const int steps = static_cast<int>(int64_t{split + 1} * all_steps / splits) - first;
  const uint32_t base = shared_address(ring);

  // A thread copies chunk thread % 8 of rows thread / 8 + i * kThreads / 8.
  constexpr int kPasses = kRows * 8 / kThreads;  // = 8
  constexpr int kRowsPerPass = kThreads / 8;
  const int piece = thread % 8;
  const std::byte* from[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    // A gated thread block has, for each warp, 16 rows of the gate and 16 of up.
    const int local = thread / 8 + i * kRowsPerPass;
    const bool up = gated && local % 32 >= 16;
    const int index = place.row + (gated ? local / 32 * 16 + local % 16 : local);
    from[i] = p.part[up ? 1 : place.part].w + (int64_t{min(index, n - 1)} * p.k + piece * 8) * 2;
  }
  const auto copy_weights = [&](int step) {
    const uint32_t stage = base + step % S * kStageBytes;
    const int column = (first + step) * kStepColumns;
    const bool exists = column + piece * 8 < p.k;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int local = thread / 8 + i * kRowsPerPass;
      copy_piece(stage + local * kRowBytes + (piece ^ (local % 8)) * 16,
                 exists ? from[i] + int64_t{column} * 2 : from[i], exists);
    }
  };
  const auto copy_x = [&](int step) {
    const uint32_t stage = base + step % S * kStageBytes + kRows * kRowBytes;
    const int column = (first + step) * kStepColumns + piece * 8;
#pragma unroll
    for (int local = thread / 8; local < kTokens; local += kRowsPerPass) {
      const bool exists = local < tokens && column < p.k;
      const std::byte* x = p.x + ((token0 + local) * p.x_stride + column) * 2;
      copy_piece(stage + local * kRowBytes + (piece ^ (local % 8)) * 16, exists ? x : p.x, exists);
    }
  };

#pragma unroll
  for (int s = 0; s < S - 1; ++s) {
    if (s < steps) copy_weights(s);
  }
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < S - 1; ++s) {
    if (s < steps) copy_x(s);
    commit_copies();
  }

  float sum[2][NT][4] = {};
  for (int step = 0; step < steps; ++step) {
    wait_copies<S - 2>();
    __syncthreads();
    if (step + S - 1 < steps) {
      copy_weights(step + S - 1);
      copy_x(step + S - 1);
    }
    commit_copies();
    const uint32_t stage = base + step % S * kStageBytes, rows = stage + warp * 32 * kRowBytes;
    multiply_stage<T, NT>(sum, rows, rows + 16 * kRowBytes, stage + kRows * kRowBytes, lane);
  }

  launch_dependents();
  finish_tile<NT, W>(p, sum, {tile, split, splits}, scratch, place, token0, tokens);
}

struct StagedShape {
  int warps, stages;
};
constexpr StagedShape kShapes[] = {{4, 4}, {4, 8}, {2, 6}, {8, 3}, {8, 4}};
constexpr int kShapeCount = sizeof(kShapes) / sizeof(kShapes[0]);

size_t ring_bytes(const StagedShape& s, int tiles) {
  return size_t(s.stages) * size_t(32 * s.warps + 8 * tiles) * kRowBytes;
}

template <class T, int NT, int Index>
void launch_shape(const LinearParams& p, int splits, const LinearScratch& scratch,
                  cudaStream_t stream) {
  constexpr StagedShape s = kShapes[Index];
  constexpr auto kernel = staged_kernel<T, NT, s.warps, s.stages>;
  const size_t bytes = ring_bytes(s, NT);
  const int rows = 32 * s.warps;
  const int tiles = row_groups(p, p.epilogue == Epilogue::kGated ? rows / 2 : rows);
  const int groups = (p.tokens + 8 * NT - 1) / (8 * NT);
  const int steps = (p.k + kStepColumns - 1) / kStepColumns;
  splits =
      allowed_splits(splits, tiles, steps, groups, size_t(rows) * 8 * NT * sizeof(float), scratch);
  // This is set per device and is cheap; a graph does not record it.
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(bytes)));
  launch(kernel, dim3(tiles * splits, groups), dim3(32 * s.warps), bytes, stream, p, splits,
         scratch.data);
}

template <class T, int NT>
void launch_index(const LinearVariant& v, const LinearParams& p, const LinearScratch& scratch,
                  cudaStream_t stream) {
  const auto try_one = [&]<int I>(std::integral_constant<int, I>) {
    if (v.index == I) launch_shape<T, NT, I>(p, v.splits, scratch, stream);
  };
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (try_one(std::integral_constant<int, I>()), ...);
  }
  (std::make_integer_sequence<int, kShapeCount>());
}

template <class T>
void run(const LinearParams& p, const LinearVariant& v, const LinearScratch& scratch,
         cudaStream_t stream) {
  switch (token_tiles(p.tokens)) {
    case 2:
      return launch_index<T, 2>(v, p, scratch, stream);
    case 4:
      return launch_index<T, 4>(v, p, scratch, stream);
    default:
      return launch_index<T, 8>(v, p, scratch, stream);
  }
}

}  // namespace

int best_splits(int64_t tiles, int64_t steps, int64_t slots) {
  // A wave of thread blocks takes as long as its steps, plus filling the ring and adding up splits.
  int best = 1;
  double best_time = 0;
  for (int splits = 1; splits <= kMaxSplits && splits * 4 <= steps; ++splits) {
    const int64_t blocks = tiles * splits;
    if (splits > 1 && blocks > 8 * slots) break;
    const double waves = static_cast<double>((blocks + slots - 1) / slots);
    const double per_block = static_cast<double>((steps + splits - 1) / splits) + 3 +
                             (splits > 1 ? 4 + 0.25 * splits : 0);
    const double time = waves * per_block;
    if (splits == 1 || time < best_time) best = splits, best_time = time;
  }
  return best;
}

int allowed_splits(int splits, int tiles, int steps, int token_groups, size_t part_bytes,
                   const LinearScratch& scratch) {
  splits = std::clamp(splits, 1, steps);
  const size_t room =
      scratch.bytes > kScratchCounterBytes ? scratch.bytes - kScratchCounterBytes : 0;
  const bool fits = token_groups == 1 && tiles <= kMaxCounters &&
                    size_t(tiles) * size_t(splits) * part_bytes <= room;
  return fits ? splits : 1;
}

int staged_variants() { return kShapeCount; }

std::string staged_variant_name(int index) {
  return fmt::format("ring r{} s{}", 32 * kShapes[index].warps, kShapes[index].stages);
}

bool staged_supports(int index, const LinearProblem& problem, const GpuShape& gpu) {
  if (index < 0 || index >= kShapeCount) return false;
  const size_t bytes = ring_bytes(kShapes[index], token_tiles(problem.tokens)) + kDeclaredBytes;
  return problem.dtype != DType::kF32 && problem.k % 8 == 0 && bytes <= size_t(gpu.shared_bytes);
}

size_t flat_scratch_bytes(int sms) {
  // best_splits() uses up to eight thread blocks per slot, but only where they are small; larger
  // grids are not split if this size does not hold them.
  return kScratchCounterBytes + size_t(sms) * 8 * (size_t{32} << 10);
}

LinearVariant plan_staged(const LinearProblem& problem, const GpuShape& gpu) {
  LinearVariant variant;
  // The ring must fit: Turing's 64 KiB are not supported, some Ampere and Ada have 99 KiB.
  const bool large = gpu.compute_capability == 80 || gpu.compute_capability == 90;
  const auto tiles = [&](int index) {
    const int64_t rows = 32 * kShapes[index].warps;
    return (problem.n + rows - 1) / rows;
  };
  variant.index = !large || problem.tokens <= 32 ? 2 : 0;
  if (large && problem.gated && problem.tokens <= 16) {
    // H200, 22016 rows, not overlapping: 48.2 us with the lower tiles, 50.7 with the highest
    // (split).
    const int low = problem.tokens <= 8 ? 2 : 0;
    variant.index = tiles(low) >= gpu.sms ? low : 3;
  }
  // If every multiprocessor has a tile, adding up splits costs more than splitting gains. H200:
  // 22016 rows, 8 tokens: 48.2 us whole, 51.6 in two; 11008 rows: 26.5 and 27.4.
  if (problem.tokens > kFlatTokens || tiles(variant.index) >= gpu.sms) return variant;
  // Slots are multiprocessors, not thread blocks: two thread blocks on one share its bandwidth.
  variant.splits =
      best_splits(tiles(variant.index), (problem.k + kStepColumns - 1) / kStepColumns, gpu.sms);
  return variant;
}

void linear_staged(const LinearCall& call, const LinearVariant& variant,
                   const LinearScratch& scratch, cudaStream_t stream) {
  SPW_ASSERT(staged_supports(variant.index, problem_of(call), current_gpu()));
  const LinearParams p = params_of(call);
  if (call.parts[0].w.dtype == DType::kF16) {
    run<__half>(p, variant, scratch, stream);
  } else {
    run<__nv_bfloat16>(p, variant, scratch, stream);
  }
}

}  // namespace spillway::cuda
