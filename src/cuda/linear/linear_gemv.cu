// SPDX-License-Identifier: Apache-2.0
// Linear layers of one to a few tokens on CUDA cores, at the speed of memory.
//
// A warp takes R rows; each lane keeps U 16-byte chunks of every row in flight (a ring of
// registers), so that the weights in flight cover the latency of memory whatever the grid: with 16
// warps per multiprocessor, R = 2 and U = 8 that is 128 KiB, four times what HBM needs. The ring is
// filled before the kernel waits for the previous one.
#include <fmt/format.h>

#include <type_traits>

#include "cuda/kv/qkv_append.cuh"
#include "cuda/linear/linear.h"
#include "cuda/linear/linear_params.cuh"

namespace spillway::cuda {
namespace {

constexpr int kWarps = 4;  // per thread block; small thread blocks leave no gap when they end

// For kernels that append nothing to the KV: sums go only where LinearParams directs them.
struct NoAppend {};

// The kernel has M tokens, R rows per warp (gated: R / 2 of each matrix), U chunks in flight per
// row, and KW warps that share the columns of their rows.
template <class T, int M, int R, int U, int KW, class Append = NoAppend>
__global__ void __launch_bounds__(32 * kWarps)
    gemv_kernel(const __grid_constant__ LinearParams p, int groups, bool prefetch_l2,
                const __grid_constant__ Append append) {
  constexpr bool kAppends = !std::is_same_v<Append, NoAppend>;
  static_assert(M * R <= 32 && kWarps % KW == 0 && (!kAppends || (M == 1 && R == 2)));
  constexpr int V = Vector16<T>::kCount;
  constexpr int kPieceBytes = 512;  // of one warp's load
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kw = warp % KW;
  const bool gated = R % 2 == 0 && p.epilogue == Epilogue::kGated;
  const int wanted = blockIdx.x * (kWarps / KW) + warp / KW;
  const int group = min(wanted, groups - 1);
  const RowPlace place = place_of(p, group, gated ? R / 2 : R);
  const int n = p.part[place.part].n;

  const std::byte* row[R];  // this lane's first chunk
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const bool up = gated && r >= R / 2;
    const std::byte* w = p.part[up ? 1 : place.part].w;
    int index = min(place.row + (up ? r - R / 2 : r), n - 1);
    if constexpr (kAppends) index = append.row_of(place.part, place.row / 2, r);
    row[r] = w + (int64_t{index} * p.k) * sizeof(T) + kw * kPieceBytes + lane * 16;
  }
  const int first_column = kw * 32 * V + lane * V;
  const auto column = [&](int step) { return first_column + step * (KW * 32 * V); };
  const auto load = [&](int step, int r) {
    return column(step) < p.k ? load_weights(row[r] + int64_t{step} * (KW * kPieceBytes))
                              : uint4{0, 0, 0, 0};
  };

  uint4 w[U][R];
#pragma unroll
  for (int u = 0; u < U; ++u) {
#pragma unroll
    for (int r = 0; r < R; ++r) w[u][r] = load(u, r);
  }
  if (prefetch_l2 && kw == 0) {
    const int row_bytes = p.k * static_cast<int>(sizeof(T));
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const std::byte* start = row[r] - lane * 16;
      for (int at = U * KW * kPieceBytes + lane * 128; at < row_bytes; at += 32 * 128) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(start + at));
      }
    }
  }
  wait_for_previous();
  float2 angle = {};
  if constexpr (kAppends) angle = append.angle_of(place.part, place.row / 2);

  // Past the end of a row weights are zero, and the last chunk of x is read again.
  const std::byte* x[M];
#pragma unroll
  for (int m = 0; m < M; ++m) x[m] = p.x + min(m, p.tokens - 1) * p.x_stride * int64_t{sizeof(T)};
  float sum[M][R] = {};
  const int steps = (p.k + KW * 32 * V - 1) / (KW * 32 * V);
  for (int step = 0; step < steps; step += U) {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int64_t at = int64_t{min(column(step + u), p.k - V)} * int64_t{sizeof(T)};
      float xf[M][V];
#pragma unroll
      for (int m = 0; m < M; ++m) {
        Vector16<T>::unpack(*reinterpret_cast<const uint4*>(x[m] + at), xf[m]);
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float wf[V];
        Vector16<T>::unpack(w[u][r], wf);
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int v = 0; v < V; ++v) sum[m][r] = fmaf(wf[v], xf[m][v], sum[m][r]);
        }
        w[u][r] = load(step + u + U, r);
      }
    }
  }

  launch_dependents();
  // Lane m * R + r ends up with the sum of token m and row r.
  float mine = 0;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float s = sum[m][r];
#pragma unroll
      for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
      if (lane == m * R + r) mine = s;
    }
  }
  if constexpr (KW > 1) {
    __shared__ float parts[kWarps][M * R];
    if (lane < M * R) parts[warp][lane] = mine;
    __syncthreads();
    if (kw != 0) return;
    if (lane < M * R) {
#pragma unroll
      for (int i = 1; i < KW; ++i) mine += parts[warp + i][lane];
    }
  }
  if constexpr (kAppends) {
    const int row = append.row_of(place.part, place.row / 2, lane % 2);
    const float* const bias = p.part[place.part].bias;
    if (bias != nullptr && lane < 2) mine += bias[row];
    mine = append.stored_sum(p.out_type, place.part, mine, append.faults);
    const float other = __shfl_xor_sync(~0u, mine, 1);
    if (wanted < groups && lane < 2) {
      append.store(p, place.part, row, append.rotated(place.part, lane, angle, mine, other));
    }
    return;
  }
  const int token = lane / R, r = lane % R;
  const float up = __shfl_down_sync(~0u, mine, R / 2);
  const bool valid = wanted < groups && lane < M * R && token < p.tokens && place.row + r < n;
  if (gated) {
    if (valid && r < R / 2) finish_gated(p, place.row + r, token, mine, up);
  } else if (valid) {
    finish(p, place.part, place.row + r, token, mine);
  }
}

// For any size and alignment: a warp computes a row (gated: a pair of rows), element by element.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    gemv_any_kernel(const __grid_constant__ LinearParams p, int groups) {
  launch_dependents();
  wait_for_previous();
  const int lane = threadIdx.x % 32;
  const int group = blockIdx.x * kWarps + threadIdx.x / 32;
  if (group >= groups) return;
  const bool gated = p.epilogue == Epilogue::kGated;
  const RowPlace place = place_of(p, group, 1);
  const T* w = reinterpret_cast<const T*>(p.part[place.part].w) + int64_t{place.row} * p.k;
  const T* w_up = gated ? reinterpret_cast<const T*>(p.part[1].w) + int64_t{place.row} * p.k : w;
  for (int token = 0; token < p.tokens; ++token) {
    const T* x = reinterpret_cast<const T*>(p.x) + token * p.x_stride;
    float sum = 0, up = 0;
    for (int i = lane; i < p.k; i += 32) {
      const float xi = to_f32(x[i]);
      sum = fmaf(to_f32(w[i]), xi, sum);
      if (gated) up = fmaf(to_f32(w_up[i]), xi, up);
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      sum += __shfl_xor_sync(~0u, sum, d);
      up += __shfl_xor_sync(~0u, up, d);
    }
    if (lane != 0) continue;
    if (gated) {
      finish_gated(p, place.row, token, sum, up);
    } else {
      finish(p, place.part, place.row, token, sum);
    }
  }
}

struct GemvShape {
  int rows, unroll, k_warps;
};
constexpr GemvShape kShapes[] = {{2, 8, 1}, {2, 4, 1}, {1, 8, 1}, {4, 4, 1}, {2, 4, 4},
                                 {2, 8, 2}, {4, 4, 2}, {4, 2, 4}, {1, 8, 2}};
constexpr int kShapeCount = sizeof(kShapes) / sizeof(kShapes[0]);

template <class T, int M, int Index>
void launch_shape(const LinearParams& p, bool prefetch_l2, cudaStream_t stream) {
  constexpr GemvShape s = kShapes[Index];
  const int groups = row_groups(p, p.epilogue == Epilogue::kGated ? s.rows / 2 : s.rows);
  constexpr int per_block = kWarps / s.k_warps;
  launch(gemv_kernel<T, M, s.rows, s.unroll, s.k_warps>, dim3((groups + per_block - 1) / per_block),
         dim3(32 * kWarps), 0, stream, p, groups, prefetch_l2, NoAppend());
}

template <class T, int M>
void launch_index(int index, const LinearParams& p, bool prefetch_l2, cudaStream_t stream) {
  const auto try_one = [&]<int I>(std::integral_constant<int, I>) {
    if (index == I) launch_shape<T, M, I>(p, prefetch_l2, stream);
  };
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (try_one(std::integral_constant<int, I>()), ...);
  }
  (std::make_integer_sequence<int, kShapeCount>());
}

template <class T>
void run(const LinearCall& call, const LinearVariant& variant, cudaStream_t stream) {
  if (!is_vector_aligned(call)) {
    const LinearParams p = params_of(call);
    const int groups = row_groups(p, 1);
    launch(gemv_any_kernel<T>, dim3((groups + kWarps - 1) / kWarps), dim3(32 * kWarps), 0, stream,
           p, groups);
    return;
  }
  for (int64_t first = 0; first < call.x.rows; first += kGemvTokens) {
    const int64_t count = std::min<int64_t>(kGemvTokens, call.x.rows - first);
    const LinearParams p = params_of(tokens_of(call, first, count));
    if (count == 1) {
      launch_index<T, 1>(variant.index, p, variant.prefetch_l2, stream);
    } else if (count == 2) {
      launch_index<T, 2>(variant.index, p, variant.prefetch_l2, stream);
    } else {
      launch_index<T, 4>(variant.index, p, variant.prefetch_l2, stream);
    }
  }
}

template <class T>
void run_append(const LinearCall& call, const QkvAppend& append, cudaStream_t stream) {
  const LinearParams p = params_of(call);
  const int groups = row_groups(p, 2);
  launch(gemv_kernel<T, 1, 2, 4, 4, QkvAppend>, dim3(static_cast<unsigned>(groups)),
         dim3(32 * kWarps), 0, stream, p, groups, false, append);
}

}  // namespace

int gemv_variants() { return kShapeCount; }

std::string gemv_variant_name(int index) {
  const GemvShape& s = kShapes[index];
  return fmt::format("r{} u{} k{}", s.rows, s.unroll, s.k_warps);
}

bool gemv_supports(int index, const LinearProblem& problem) {
  return index >= 0 && index < kShapeCount && (!problem.gated || kShapes[index].rows % 2 == 0);
}

LinearVariant plan_gemv(const LinearProblem& problem, const GpuShape& /*gpu*/) {
  // The warps of a thread block share two rows. This variant decodes fastest of all, by a small
  // margin, alone and in whole steps (H200: 251 tokens/s of a 7B F16 model; 250 with each warp on
  // rows of its own).
  LinearVariant variant;
  variant.index = 4;
  SPW_ASSERT(gemv_supports(variant.index, problem));
  return variant;
}

void linear_gemv(const LinearCall& call, const LinearVariant& variant, cudaStream_t stream) {
  if (call.x.rows == 0) return;
  SPW_ASSERT(gemv_supports(variant.index, problem_of(call)));
  with_activation_type(call.parts[0].w.dtype, [&]<class T>() { run<T>(call, variant, stream); });
}

void linear_gemv_append(const LinearCall& call, const AppendCall& append, cudaStream_t stream) {
  SPW_ASSERT(can_append(call, append));
  const QkvAppend qkv = qkv_append(append);
  with_activation_type(call.parts[0].w.dtype, [&]<class T>() { run_append<T>(call, qkv, stream); });
}

}  // namespace spillway::cuda
