// SPDX-License-Identifier: Apache-2.0
// linear_staged.cu by Hopper's bulk copies: one instruction of one thread fetches a whole row of a
// step, so that few instructions keep much in flight; a barrier in shared memory counts the bytes
// that have come. Rows in the ring are 16 bytes longer than their data, so that ldmatrix meets no
// bank conflicts.
#include <fmt/format.h>

#include <type_traits>

#include "cuda/linear.h"
#include "cuda/linear_flat.cuh"

namespace spillway::cuda {
namespace {

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void init_barrier(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
// The one arrival of a phase, and how many bytes it waits for.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_for_phase(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}
__device__ __forceinline__ void copy_row(uint32_t to, const std::byte* from, uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
#endif

// NT tiles of 8 tokens, W warps, S steps of C columns in the ring. blockIdx.x = tile * splits +
// split.
template <class T, int NT, int W, int S, int C>
__global__ void __launch_bounds__(32 * W)
    bulk_kernel(const __grid_constant__ LinearParams p, int splits, std::byte* scratch) {
#if __CUDA_ARCH__ >= 900
  constexpr int kRows = 32 * W, kTokens = 8 * NT;
  constexpr int kRowBytes = 2 * C, kStride = kRowBytes + 16;
  constexpr int kStageBytes = (kRows + kTokens) * kStride;
  static_assert(kTokens <= 32 * W && C % 64 == 0);
  extern __shared__ __align__(128) std::byte ring[];
  __shared__ uint64_t full[S];
  let_next_start();
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int tile = blockIdx.x / splits, split = blockIdx.x % splits;
  const bool gated = p.epilogue == Epilogue::kGated;
  const RowPlace place = place_of(p, tile, gated ? kRows / 2 : kRows);
  const int n = p.part[place.part].n;
  const int all_steps = p.k / C;
  const int first = static_cast<int>(int64_t{split} * all_steps / splits);
  const int steps = static_cast<int>(int64_t{split + 1} * all_steps / splits) - first;
  const uint32_t base = shared_address(ring), barriers = shared_address(full);

  // Every thread copies one row of weights; rows of a gated block: 16 of the gate, 16 of up for
  // each warp.
  const bool up = gated && lane >= 16;
  const int index = min(place.row + (gated ? warp * 16 + lane % 16 : thread), n - 1);
  const std::byte* w = p.part[up ? 1 : place.part].w + (int64_t{index} * p.k + first * C) * 2;
  const std::byte* x = p.x + (thread * p.x_stride + first * C) * 2;
  const auto copy_weights = [&](int step) {
    copy_row(base + step % S * kStageBytes + thread * kStride, w + int64_t{step} * kRowBytes,
             kRowBytes, barriers + step % S * 8);
  };
  const auto copy_x = [&](int step) {
    if (thread == 0) expect_bytes(barriers + step % S * 8, (kRows + p.tokens) * kRowBytes);
    if (thread < p.tokens) {
      copy_row(base + step % S * kStageBytes + (kRows + thread) * kStride,
               x + int64_t{step} * kRowBytes, kRowBytes, barriers + step % S * 8);
    }
  };
  if (thread == 0) {
#pragma unroll
    for (int s = 0; s < S; ++s) init_barrier(barriers + s * 8);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  // Tokens that only pad stay zero in every step.
  for (int at = thread; at < S * (kTokens - p.tokens) * (kStride / 16); at += 32 * W) {
    const int piece = at % (kStride / 16), row = at / (kStride / 16);
    const int s = row / (kTokens - p.tokens), token = p.tokens + row % (kTokens - p.tokens);
    *reinterpret_cast<uint4*>(ring + s * kStageBytes + (kRows + token) * kStride + piece * 16) =
        uint4{0, 0, 0, 0};
  }
  __syncthreads();
  for (int s = 0; s < S && s < steps; ++s) copy_weights(s);
  wait_for_previous();
  // x was written by ordinary stores; the copies are to see them.
  asm volatile("fence.proxy.async;" ::: "memory");
  for (int s = 0; s < S && s < steps; ++s) copy_x(s);

  float sum[2][NT][4] = {};
  const uint32_t a_at = (warp * 32 + lane % 16) * kStride + lane / 16 * 16;
  const uint32_t b_at = (kRows + lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 16;
  for (int step = 0; step < steps; ++step) {
    wait_for_phase(barriers + step % S * 8, step / S % 2);
    const uint32_t stage = base + step % S * kStageBytes;
#pragma unroll 4
    for (int kk = 0; kk < C / 16; ++kk) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_matrices(a[i], stage + a_at + i * 16 * kStride + kk * 32);
#pragma unroll
      for (int j = 0; j < NT; j += 2) {
        uint32_t b[4];
        load_matrices(b, stage + b_at + j * 8 * kStride + kk * 32);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma_16x8x16<T>(sum[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
          mma_16x8x16<T>(sum[i][j + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
        }
      }
    }
    __syncthreads();
    if (step + S < steps) {
      copy_weights(step + S);
      copy_x(step + S);
    }
  }
  finish_tile<NT, W>(p, sum, {tile, split, splits}, scratch, place, 0, p.tokens);
#else
  __trap();  // never launched there
#endif
}

struct BulkShape {
  int warps, stages, columns;
};
constexpr BulkShape kShapes[] = {{4, 2, 256}, {4, 4, 128}, {2, 4, 128}};
constexpr int kShapeCount = sizeof(kShapes) / sizeof(kShapes[0]);

template <class T, int NT, int Index>
void launch_shape(const LinearParams& p, int splits, const LinearScratch& scratch,
                  cudaStream_t stream) {
  constexpr BulkShape s = kShapes[Index];
  constexpr auto kernel = bulk_kernel<T, NT, s.warps, s.stages, s.columns>;
  constexpr int kRows = 32 * s.warps;
  constexpr size_t bytes = size_t(s.stages) * (kRows + 8 * NT) * (2 * s.columns + 16);
  static_assert(bytes <= size_t{226} << 10);
  const int tiles = row_groups(p, p.epilogue == Epilogue::kGated ? kRows / 2 : kRows);
  splits = allowed_splits(splits, tiles, 1, size_t{kRows} * 8 * NT * sizeof(float), scratch);
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(bytes)));
  launch(kernel, dim3(tiles * splits), dim3(32 * s.warps), bytes, stream, p, splits, scratch.data);
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
  if (p.tokens <= 16) return launch_index<T, 2>(v, p, scratch, stream);
  if (p.tokens <= 32) return launch_index<T, 4>(v, p, scratch, stream);
  launch_index<T, 8>(v, p, scratch, stream);
}

}  // namespace

int bulk_variants() { return kShapeCount; }

std::string bulk_variant_name(int index) {
  const BulkShape& s = kShapes[index];
  return fmt::format("ring bulk r{} s{} c{}", 32 * s.warps, s.stages, s.columns);
}

bool bulk_supports(int index, const LinearProblem& problem) {
  return index >= 0 && index < kShapeCount && problem.dtype != DType::kF32 &&
         problem.k % kShapes[index].columns == 0 && problem.tokens <= kFlatTokens &&
         current_gpu().compute_capability >= 90;
}

void linear_bulk(const LinearCall& call, const LinearVariant& variant, const LinearScratch& scratch,
                 cudaStream_t stream) {
  const LinearParams p = params_of(call);
  if (call.parts[0].w.dtype == DType::kF16) {
    run<__half>(p, variant, scratch, stream);
  } else {
    run<__nv_bfloat16>(p, variant, scratch, stream);
  }
}

}  // namespace spillway::cuda
