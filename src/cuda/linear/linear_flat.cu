// SPDX-License-Identifier: Apache-2.0
// Flat GEMM (FlashDecoding++, section 4) for few tokens, padded to 8 and not to 64: weights go from
// memory straight into the registers of tensor core instructions.
//
// A warp takes RT tiles of 16 rows and a range of the columns. In a chunk of 32 columns lane (g, t)
// = (lane / 4, lane % 4) loads the 8 halves at column 8t of rows g and g + 8. The order of columns
// does not matter to a sum, so these are the operands of two m16n8k16 instructions as they are:
// instruction j takes columns 8t + 4j .. 8t + 4j + 3 for the slots 2t, 2t + 1, 2t + 8, 2t + 9 of
// its k, and x with the same order is one 16-byte load per token. U chunks are in flight per warp.
// The warps of a thread block share the columns and add up in shared memory, always in the same
// order.
#include <fmt/format.h>

#include <type_traits>

#include "cuda/linear/linear.h"
#include "cuda/linear/linear_flat.cuh"

namespace spillway::cuda {
namespace {

// NT tiles of 8 tokens, RT tiles of 16 rows (gated: one of the gate, one of up), U chunks in
// flight, W warps.
template <class T, int NT, int RT, int U, int W>
__global__ void __launch_bounds__(32 * W) flat_kernel(const __grid_constant__ LinearParams p) {
  constexpr int kRows = 16 * RT, kTokens = 8 * NT;
  constexpr int kStride = kRows + 4;  // of a token's sums: no two lanes use the same bank
  __shared__ float parts[W][kTokens][kStride];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const bool gated = RT == 2 && p.epilogue == Epilogue::kGated;
  const RowPlace place = place_of(p, blockIdx.x, gated ? 16 : kRows);
  const int n = p.part[place.part].n;

  const int chunks = (p.k + 31) / 32, share = (chunks + W - 1) / W;
  const int first = warp * share;
  const int end_column = min(p.k, min(chunks, first + share) * 32);
  const int first_column = first * 32 + 8 * t;
  const std::byte* row[RT][2];
#pragma unroll
  for (int i = 0; i < RT; ++i) {
    const std::byte* w = p.part[gated && i == 1 ? 1 : place.part].w;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int index = min(place.row + (gated ? 0 : 16 * i) + 8 * h + g, n - 1);
      row[i][h] = w + (int64_t{index} * p.k + first_column) * 2;
    }
  }
  uint4 a[U][RT][2];
  const auto load = [&](int chunk, int i, int h) {
    return first_column + chunk * 32 < end_column ? load_weights(row[i][h] + int64_t{chunk} * 64)
                                                  : uint4{0, 0, 0, 0};
  };
#pragma unroll
  for (int u = 0; u < U; ++u) {
#pragma unroll
    for (int i = 0; i < RT; ++i) a[u][i][0] = load(u, i, 0), a[u][i][1] = load(u, i, 1);
  }
  wait_for_previous();

  const std::byte* x = p.x + (g * p.x_stride + first_column) * 2;
  const int64_t x_tile_bytes = 8 * p.x_stride * 2;
  float sum[RT][NT][4] = {};
  for (int chunk = 0; chunk < share; chunk += U) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const bool inside = first_column + (chunk + u) * 32 < end_column;
      uint4 b[NT];
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        b[j] = uint4{0, 0, 0, 0};
        if (inside && 8 * j + g < p.tokens) {
          b[j] = *reinterpret_cast<const uint4*>(x + j * x_tile_bytes + int64_t{chunk + u} * 64);
        }
      }
#pragma unroll
      for (int i = 0; i < RT; ++i) {
        const uint4 low = a[u][i][0], high = a[u][i][1];
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          mma_16x8x16<T>(sum[i][j], low.x, high.x, low.y, high.y, b[j].x, b[j].y);
          mma_16x8x16<T>(sum[i][j], low.z, high.z, low.w, high.w, b[j].z, b[j].w);
        }
        a[u][i][0] = load(chunk + u + U, i, 0);
        a[u][i][1] = load(chunk + u + U, i, 1);
      }
    }
  }

  launch_dependents();
#pragma unroll
  for (int i = 0; i < RT; ++i) {
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      float* to = &parts[warp][8 * j + 2 * t][16 * i + g];
      to[0] = sum[i][j][0], to[kStride] = sum[i][j][1];
      to[8] = sum[i][j][2], to[kStride + 8] = sum[i][j][3];
    }
  }
  __syncthreads();
  const auto total = [&](int token, int r) {
    float s = parts[0][token][r];
#pragma unroll
    for (int i = 1; i < W; ++i) s += parts[i][token][r];
    return s;
  };
  if (gated) {
    for (int at = threadIdx.x; at < 16 * p.tokens; at += 32 * W) {
      const int r = at % 16, token = at / 16;
      if (place.row + r < n) {
        finish_gated(p, place.row + r, token, total(token, r), total(token, r + 16 * (RT - 1)));
      }
    }
  } else {
    for (int at = threadIdx.x; at < kRows * p.tokens; at += 32 * W) {
      const int r = at % kRows, token = at / kRows;
      if (place.row + r < n) finish(p, place.part, place.row + r, token, total(token, r));
    }
  }
}

struct FlatShape {
  int row_tiles, unroll, warps;
};
constexpr FlatShape kShapes[] = {{1, 8, 8}, {1, 4, 8}, {2, 4, 8}, {2, 4, 4},
                                 {1, 8, 4}, {2, 2, 8}, {1, 4, 16}};
constexpr int kShapeCount = sizeof(kShapes) / sizeof(kShapes[0]);
// The shapes that plans choose: tiles of 16 or 32 rows, and the number of warps that share their
// columns.
constexpr int kLow8Warps = 1, kTall8Warps = 2, kTall4Warps = 3, kLow16Warps = 6;
constexpr int kDirectTokens = 32;

template <class T, int NT, int Index>
void launch_shape(const LinearParams& p, cudaStream_t stream) {
  constexpr FlatShape s = kShapes[Index];
  if constexpr (NT * s.row_tiles * s.warps <= 64 && s.unroll * s.row_tiles + NT <= 12) {
    const int rows = p.epilogue == Epilogue::kGated ? 16 : 16 * s.row_tiles;
    launch(flat_kernel<T, NT, s.row_tiles, s.unroll, s.warps>, dim3(row_groups(p, rows)),
           dim3(32 * s.warps), 0, stream, p);
  }
}

template <class T, int NT>
void launch_index(int index, const LinearParams& p, cudaStream_t stream) {
  const auto try_one = [&]<int I>(std::integral_constant<int, I>) {
    if (index == I) launch_shape<T, NT, I>(p, stream);
  };
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (try_one(std::integral_constant<int, I>()), ...);
  }
  (std::make_integer_sequence<int, kShapeCount>());
}

template <class T>
void run_direct(const LinearParams& p, int index, cudaStream_t stream) {
  if (p.tokens <= 8) {
    launch_index<T, 1>(index, p, stream);
  } else if (p.tokens <= 16) {
    launch_index<T, 2>(index, p, stream);
  } else {
    launch_index<T, 4>(index, p, stream);
  }
}

bool tensor_cores_serve(const LinearProblem& problem, const GpuShape& gpu) {
  return problem.dtype != DType::kF32 && gpu.compute_capability >= 80;
}

}  // namespace

// Variants are numbered: direct ones first, then those of linear_staged.cu, then those of
// linear_stream.cu.
int flat_variants() { return kShapeCount + staged_variants() + stream_variants(); }

std::string flat_variant_name(int index) {
  const int stream = index - kShapeCount - staged_variants();
  if (stream >= 0) return stream_variant_name(stream);
  if (index >= kShapeCount) return staged_variant_name(index - kShapeCount);
  const FlatShape& s = kShapes[index];
  return fmt::format("r{} u{} w{}", 16 * s.row_tiles, s.unroll, s.warps);
}

bool flat_supports(int index, const LinearProblem& problem) {
  if (index < 0 || problem.dtype == DType::kF32) return false;
  const int stream = index - kShapeCount - staged_variants();
  if (stream >= 0) return stream_supports(stream, problem, current_gpu());
  if (index >= kShapeCount) return staged_supports(index - kShapeCount, problem, current_gpu());
  const FlatShape& s = kShapes[index];
  const int tiles = problem.tokens <= 8 ? 1 : problem.tokens <= 16 ? 2 : 4;
  return problem.tokens <= kDirectTokens && (!problem.gated || s.row_tiles == 2) &&
         tiles * s.row_tiles * s.warps <= 64 && s.unroll * s.row_tiles + tiles <= 12;
}

LinearVariant plan_flat(const LinearProblem& problem, const GpuShape& gpu) {
  if (!tensor_cores_serve(problem, gpu)) return plan_gemv(problem, gpu);
  // Measured on an H200 (bench/results). With few rows many warps share them; with many rows the
  // ring is better, as it reads x once for a thread block's rows.
  LinearVariant variant;
  const bool few_rows = has_few_rows(problem, gpu);
  if (problem.gated && (problem.tokens <= 4 || (few_rows && problem.tokens <= kDirectTokens))) {
    variant.index = kTall8Warps;
  } else if (problem.tokens <= 8 && few_rows) {
    variant.index = kLow16Warps;
  } else if (problem.tokens <= 4) {
    variant.index = problem.tokens <= 2 ? kTall4Warps : kLow8Warps;
  } else {
    variant = plan_staged(problem, gpu);
    variant.index += kShapeCount;
  }
  return variant;
}

LinearVariant plan_overlapping(const LinearProblem& problem, const GpuShape& gpu) {
  const int index = problem.tokens <= kOverlapTokens ? plan_stream(problem, gpu) : -1;
  if (index < 0) return plan_flat(problem, gpu);
  // In these cases other kernels are faster even when launches overlap (H200, us, compared with
  // linear_stream.cu):
  // few rows, 2 to 8 tokens: 10.2-11.0 instead of 12.6 (4096 x 4096), 23.7-25.1 instead of 25.8
  // (4096 x 11008);
  // few rows and few columns, up to 16 tokens: 11.9 instead of 12.7 (4096 x 4096);
  // gated, 22016 x 4096, 8 and 16 tokens: 46.5 instead of 48.4, by rings whose tiles need no
  // splitting.
  const bool few_rows = !problem.gated && has_few_rows(problem, gpu);
  if (few_rows && problem.tokens <= 8) return plan_flat(problem, gpu);
  if (few_rows && problem.tokens <= 16 && problem.k <= 4096) return {kTall8Warps, 1};
  // With one token low tiles take 25.4 us (12288 x 4096; GEMV 26.5). Tall tiles are for matrices
  // where they fill the GPU, four to a multiprocessor: 31.5 us (16384 x 4096; GEMV 34.2). Where
  // they do not fill it, they take 28.0 us.
  if (!problem.gated && problem.tokens == 1) {
    const bool tall_tiles_fill = problem.n / 32 * 10 >= int64_t{gpu.sms} * 4 * 9;
    return {tall_tiles_fill ? kTall4Warps : kLow8Warps, 1};
  }
  if (problem.gated && problem.tokens > 4 && problem.tokens <= 16) {
    const LinearVariant staged = plan_staged(problem, gpu);
    if (staged.splits == 1) return {kShapeCount + staged.index, 1};
  }
  return {kShapeCount + staged_variants() + index, 0};
}

void linear_flat(const LinearCall& call, const LinearVariant& variant, const LinearScratch& scratch,
                 cudaStream_t stream) {
  if (call.x.rows == 0) return;
  const LinearProblem problem = problem_of(call);
  const GpuShape gpu = current_gpu();
  if (!tensor_cores_serve(problem, gpu)) return linear_gemv(call, variant, stream);
  if (!is_vector_aligned(call)) return linear_gemv(call, plan_gemv(problem, gpu), stream);
  SPW_ASSERT(flat_supports(variant.index, problem));
  if (variant.index >= kShapeCount) {
    LinearVariant staged = variant;
    staged.index -= kShapeCount;
    if (staged.index >= staged_variants()) {
      staged.index -= staged_variants();
      return linear_stream(call, staged, scratch, gpu, stream);
    }
    return linear_staged(call, staged, scratch, stream);
  }
  const LinearParams p = params_of(call);
  if (problem.dtype == DType::kF16) {
    run_direct<__half>(p, variant.index, stream);
  } else {
    run_direct<__nv_bfloat16>(p, variant.index, stream);
  }
}

}  // namespace spillway::cuda
