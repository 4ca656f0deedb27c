// SPDX-License-Identifier: Apache-2.0
// What the tensor core kernels of linear layers share.
#pragma once

#include "cuda/linear_params.cuh"

namespace spillway::cuda {

// d += a * b for one 16 x 8 x 16 tile: a 16 rows of weights, b 8 tokens of x.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                            uint32_t a3, uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
#else
  (void)d, (void)a0, (void)a1, (void)a2, (void)a3, (void)b0, (void)b1;
  __trap();  // never launched there
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Which part of which tile of rows a block computes.
struct TileSlice {
  int tile, split, splits;
};

// What follows the last column of a block of W warps with 32 rows each: the slices of a tile meet
// in the scratch memory, added up in their order by the block that comes last, and go out. `sum` is
// [tile of 16 rows][tile of 8 tokens][as mma_16x8x16 leaves it]; gated: gate and up.
template <int NT, int W>
__device__ __forceinline__ void finish_tile(const LinearParams& p, float (&sum)[2][NT][4],
                                            const TileSlice& slice, std::byte* scratch,
                                            const RowPlace& place, int token0, int tokens) {
  constexpr int kThreads = 32 * W;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const bool gated = p.epilogue == Epilogue::kGated;
  const int n = p.part[place.part].n;
  if (slice.splits > 1) {
    // [tile][split][element of a thread][thread]
    constexpr int kElements = 2 * NT * 4;
    __shared__ bool is_last;
    auto* counters = reinterpret_cast<uint32_t*>(scratch);
    float* parts = reinterpret_cast<float*>(scratch + kScratchCounterBytes) +
                   int64_t{slice.tile} * slice.splits * (kElements * kThreads) + thread;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      __stcg(parts + (int64_t{slice.split} * kElements + e) * kThreads,
             sum[e / (4 * NT)][e / 4 % NT][e % 4]);
    }
    __threadfence();
    __syncthreads();
    if (thread == 0) {
      is_last = atomicAdd(&counters[slice.tile], 1) == static_cast<uint32_t>(slice.splits - 1);
      if (is_last) counters[slice.tile] = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      float& s = sum[e / (4 * NT)][e / 4 % NT][e % 4];
      s = __ldcg(parts + e * kThreads);
    }
    for (int other = 1; other < slice.splits; ++other) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        sum[e / (4 * NT)][e / 4 % NT][e % 4] +=
            __ldcg(parts + (int64_t{other} * kElements + e) * kThreads);
      }
    }
  }

  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int j = 0; j < NT; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int local = 8 * j + 2 * t + e, token = token0 + local;
        if (local >= tokens) continue;
        if (gated) {
          const int row = place.row + warp * 16 + 8 * h + g;
          if (row < n) finish_gated(p, row, token, sum[0][j][2 * h + e], sum[1][j][2 * h + e]);
          continue;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = place.row + warp * 32 + 16 * i + 8 * h + g;
          if (row < n) finish(p, place.part, row, token, sum[i][j][2 * h + e]);
        }
      }
    }
  }
}

// linear_staged.cu, behind linear_flat(): variants of the ring in shared memory.
int staged_variants();
std::string staged_variant_name(int index);
bool staged_supports(int index, const LinearProblem& problem);
LinearVariant plan_staged(const LinearProblem& problem, const GpuShape& gpu);
// 16-bit types, 16-byte alignment, Ampere or later; any number of tokens.
void linear_staged(const LinearCall& call, const LinearVariant& variant,
                   const LinearScratch& scratch, cudaStream_t stream);

// How many slices of the columns keep `slots` blocks busy with the least left over.
int best_splits(int64_t tiles, int64_t steps, int64_t slots);
// How many slices a call may have: they must find room to meet.
int allowed_splits(int splits, int tiles, int token_groups, size_t part_bytes,
                   const LinearScratch& scratch);

// linear_bulk.cu, behind linear_flat(): the same by Hopper's bulk copies. Whole steps of k only, up
// to kFlatTokens tokens.
int bulk_variants();
std::string bulk_variant_name(int index);
bool bulk_supports(int index, const LinearProblem& problem);
void linear_bulk(const LinearCall& call, const LinearVariant& variant, const LinearScratch& scratch,
                 cudaStream_t stream);

}  // namespace spillway::cuda
