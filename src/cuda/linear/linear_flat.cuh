// SPDX-License-Identifier: Apache-2.0
// Code that the tensor core kernels of linear layers share.
#pragma once

#include "cuda/kernel/shared_address.cuh"
#include "cuda/kernel/warp_ptx.cuh"
#include "cuda/linear/linear_params.cuh"

namespace spillway::cuda {

// d += a * b for one 16 x 8 x 16 tile: a has 16 rows of weights, b 8 tokens of x.
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

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Rings in shared memory hold rows of 64 columns = 8 chunks of 16 bytes, with chunk c of row r at
// place c ^ (r % 8), so that neither copies nor ldmatrix have bank conflicts.
constexpr int kStepColumns = 64;
constexpr int kRowBytes = 2 * kStepColumns;
// Returns the number of tiles of 8 tokens that a kernel is compiled for.
constexpr int token_tiles(int64_t tokens) { return tokens <= 16 ? 2 : tokens <= 32 ? 4 : 8; }

// Copies 16 bytes, or writes zeros if they do not exist.
__device__ __forceinline__ void copy_piece(uint32_t to, const std::byte* from, bool exists) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0));
#else
  (void)to, (void)from, (void)exists;
  __trap();  // never launched there
#endif
}
// Adds the product of one step to `sum`: two tiles of 16 rows of weights times all tokens, which
// are in shared memory at these addresses.
template <class T, int NT>
__device__ __forceinline__ void multiply_stage(float (&sum)[2][NT][4], uint32_t tile0,
                                               uint32_t tile1, uint32_t tokens, int lane) {
  // Tiles begin at multiples of 8 rows, so the place of a chunk depends on the lane only.
  const int a_row = lane % 16, a_piece = lane / 16;
  const int b_row = lane % 8 + lane / 16 * 8, b_piece = lane / 8 % 2;
  const uint32_t a_base[2] = {tile0 + a_row * kRowBytes, tile1 + a_row * kRowBytes};
  const uint32_t b_base = tokens + b_row * kRowBytes;
#pragma unroll
  for (int kk = 0; kk < kStepColumns / 16; ++kk) {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_matrices(a[i], a_base[i] + ((2 * kk + a_piece) ^ (lane % 8)) * 16);
    }
#pragma unroll
    for (int j = 0; j < NT; j += 2) {
      uint32_t b[4];
      load_matrices(b, b_base + j * 8 * kRowBytes + ((2 * kk + b_piece) ^ (lane % 8)) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma_16x8x16<T>(sum[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
        mma_16x8x16<T>(sum[i][j + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
      }
    }
  }
}

// The range of columns (split) of a tile of rows that a thread block computes.
struct TileSlice {
  int tile, split, splits;
};

// Calls f with the activation function of that kind, so that the kind is looked up once for many
// values.
template <class F>
__device__ __forceinline__ void with_activation(ActivationKind kind, F&& f) {
  switch (kind) {
    case ActivationKind::kRelu:
      return f([](float x) { return activated(ActivationKind::kRelu, x); });
    case ActivationKind::kGelu:
      return f([](float x) { return activated(ActivationKind::kGelu, x); });
    case ActivationKind::kGeluTanh:
      return f([](float x) { return activated(ActivationKind::kGeluTanh, x); });
    case ActivationKind::kSilu:
      return f([](float x) { return activated(ActivationKind::kSilu, x); });
  }
}

// Stores the finished sums of a thread block with 32 rows per warp. `sum` is [tile of 16 rows][tile
// of 8 tokens][as mma_16x8x16 leaves it]; gated: gate and up. All choices are made outside of the
// loops over values: made inside, they were 140 KiB of instructions, whose fetching took longer
// than the weights of 64 tokens.
template <int NT>
__device__ __forceinline__ void store_tile(const LinearParams& p, float (&sum)[2][NT][4],
                                           const RowPlace& place, int token0, int tokens) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const bool gated = p.epilogue == Epilogue::kGated;
  const LinearParams::Part& part = p.part[place.part];
  const int first_row = place.row + (gated ? 16 : 32) * warp + g;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* const bias = gated ? p.part[i].bias : part.bias;
    if (bias == nullptr) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + (gated ? 0 : 16 * i) + 8 * h;
      const float add = row >= 0 && row < part.n ? bias[row] : 0;
#pragma unroll
      for (int j = 0; j < NT; ++j) sum[i][j][2 * h] += add, sum[i][j][2 * h + 1] += add;
    }
  }
  if (gated) {
    with_activation(p.activation, [&](auto f) {
#pragma unroll
      for (int v = 0; v < 4 * NT; ++v) {
        sum[0][v / 4][v % 4] = f(sum[0][v / 4][v % 4]) * sum[1][v / 4][v % 4];
      }
    });
  } else if (p.epilogue == Epilogue::kActivate) {
    with_activation(p.activation, [&](auto f) {
#pragma unroll
      for (int v = 0; v < 8 * NT; ++v) {
        float& x = sum[v / (4 * NT)][v / 4 % NT][v % 4];
        x = f(x);
      }
    });
  }
  const auto each = [&](auto* out, auto store) {
    out += (token0 + 2 * t) * p.out_stride + first_row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && gated) return;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first_row + 16 * i + 8 * h;
        if (row >= part.n) return;
        if (row < 0) continue;  // a tile may begin before its slice
#pragma unroll
        for (int j = 0; j < NT; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (8 * j + 2 * t + e >= tokens) continue;
            store(out + (8 * j + e) * p.out_stride + 16 * i + 8 * h, sum[i][j][2 * h + e]);
          }
        }
      }
    }
  };
  if (p.epilogue == Epilogue::kAccumulate) {
    // No other thread adds to it: the atomic addition only avoids waiting for the old value.
    each(reinterpret_cast<float*>(part.out), [](float* to, float x) { atomicAdd(to, x); });
  } else if (p.out_type == DType::kF16) {
    each(reinterpret_cast<__half*>(part.out),
         [](__half* to, float x) { *to = from_f32<__half>(x); });
  } else if (p.out_type == DType::kBF16) {
    each(reinterpret_cast<__nv_bfloat16*>(part.out),
         [](__nv_bfloat16* to, float x) { *to = from_f32<__nv_bfloat16>(x); });
  } else {
    each(reinterpret_cast<float*>(part.out), [](float* to, float x) { *to = x; });
  }
}

// Finishes a tile after the last column of a thread block of W warps with 32 rows each: the splits
// of a tile go to the scratch memory, and the thread block that comes last adds them up in their
// order and stores the result.
template <int NT, int W>
__device__ __forceinline__ void finish_tile(const LinearParams& p, float (&sum)[2][NT][4],
                                            const TileSlice& slice, std::byte* scratch,
                                            const RowPlace& place, int token0, int tokens) {
  constexpr int kThreads = 32 * W;
  const int thread = threadIdx.x;
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
  store_tile<NT>(p, sum, place, token0, tokens);
}

// Returns true if a matrix has too few rows for the thread blocks of a ring to keep every
// multiprocessor busy; then many warps share a tile.
inline bool has_few_rows(const LinearProblem& problem, const GpuShape& gpu) {
  return problem.n < int64_t{64} * gpu.sms;
}

// The functions of linear_staged.cu, which linear_flat() calls: variants of the ring in shared
// memory.
int staged_variants();
std::string staged_variant_name(int index);
bool staged_supports(int index, const LinearProblem& problem, const GpuShape& gpu);
LinearVariant plan_staged(const LinearProblem& problem, const GpuShape& gpu);
// Requires 16-bit types, 16-byte alignment and Ampere or later; takes any number of tokens.
void linear_staged(const LinearCall& call, const LinearVariant& variant,
                   const LinearScratch& scratch, cudaStream_t stream);

// Returns the number of splits of the columns that keeps `slots` thread blocks busy with the least
// left over.
int best_splits(int64_t tiles, int64_t steps, int64_t slots);
// Returns how many splits a call of `steps` steps that requests `splits` gets: at least one, none
// of them empty, and one if the scratch memory has no room for more.
int allowed_splits(int splits, int tiles, int steps, int token_groups, size_t part_bytes,
                   const LinearScratch& scratch);

// The functions of linear_stream.cu, which linear_flat() calls: the ring of a thread block that
// never stops between tiles. The requirements are those of linear_staged(), with up to kFlatTokens
// tokens; which columns are added up together depends on the rows of the whole matrix.
int stream_variants();
std::string stream_variant_name(int index);
bool stream_supports(int index, const LinearProblem& problem, const GpuShape& gpu);
int plan_stream(const LinearProblem& problem, const GpuShape& gpu);  // < 0: none fits this GPU
void linear_stream(const LinearCall& call, const LinearVariant& variant,
                   const LinearScratch& scratch, const GpuShape& gpu, cudaStream_t stream);

}  // namespace spillway::cuda
