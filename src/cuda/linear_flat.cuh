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

// linear_staged.cu, behind linear_flat(): variants of the ring in shared memory.
int staged_variants();
std::string staged_variant_name(int index);
bool staged_supports(int index, const LinearProblem& problem);
LinearVariant plan_staged(const LinearProblem& problem, const GpuShape& gpu);
// 16-bit types, 16-byte alignment, Ampere or later; any number of tokens.
void linear_staged(const LinearCall& call, const LinearVariant& variant,
                   const LinearScratch& scratch, cudaStream_t stream);

}  // namespace spillway::cuda
