// SPDX-License-Identifier: Apache-2.0
// Linear layers of F16, BF16 and F32 weights (WeightLayout::kRows): the three kinds of kernel of
// FlashDecoding++, sections 4 and 5, and the choice among their variants.
//
//   kGemv  CUDA cores, up to kGemvTokens tokens a pass (linear_gemv.cu)
//   kFlat  tensor cores, tokens padded to a multiple of 8: weights go straight into registers for
//          few tokens (linear_flat.cu), through a ring in shared memory for more (linear_staged.cu;
//          linear_stream.cu where launches overlap)
//   kGemm  cuBLASLt (linear_library.h), or linear_staged.cu and linear_tiled.cu where it is missing
//
// All kernels have the same contract: x has the type of the weights; out is F16, BF16 or F32 (F32
// when accumulating); sums are F32. Launchers may be captured in CUDA graphs and are thread-safe. A
// result depends on the inputs, k and the variant, never on n or on the other tokens. The variant
// depends on the `n` given to the plan_* functions, so that a slice computed with the plan of the
// whole matrix has the bits of the whole. Where linear_stream.cu splits the columns depends on that
// n and on where a slice begins.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/gpu_shape.h"
#include "cuda/kernel_args.h"
#include "cuda/kv/kv_append.h"
#include "device/tuning.h"

namespace spillway::cuda {

inline constexpr int kGemvTokens = 4;
inline constexpr int kFlatTokens = 64;

// The properties from which a variant is chosen. n counts the rows of all parts of the call; for
// slices, the rows of the whole matrices.
struct LinearProblem {
  DType dtype = DType::kF16;
  int64_t n = 0;
  int64_t k = 0;
  int64_t tokens = 1;
  bool gated = false;
};
LinearProblem problem_of(const LinearCall& call);
// Returns the call for rows `first` to `first + count` of x and out.
LinearCall tokens_of(const LinearCall& call, int64_t first, int64_t count);

// Memory through which thread blocks exchange partial sums, and a library's workspace. Its first
// kScratchCounterBytes are counters: zeroed once when allocated, left at zero by every kernel. Only
// one call at a time may use it (calls of one stream do so). data is aligned to 256 bytes.
inline constexpr size_t kScratchCounterBytes = size_t{64} << 10;
struct LinearScratch {
  std::byte* data = nullptr;
  size_t bytes = 0;
};
// Returns the size that is enough for every flat call on a GPU of `sms` multiprocessors.
size_t flat_scratch_bytes(int sms);

// Identifies a kernel variant by number; names such as "r2 u8 k1" are for benchmarks.
struct LinearVariant {
  int index = 0;
  int splits = 1;            // ranges of k, see below; linear_staged.cu and linear_stream.cu
  bool prefetch_l2 = false;  // linear_gemv.cu: prefetch all of a warp's weights before waiting
};

// --- GEMV takes any number of tokens, in passes of kGemvTokens. It is batch-invariant: with one
// variant, a token's result is bit-equal alone and among others.
int gemv_variants();
std::string gemv_variant_name(int index);
bool gemv_supports(int index, const LinearProblem& problem);
LinearVariant plan_gemv(const LinearProblem& problem, const GpuShape& gpu);
void linear_gemv(const LinearCall& call, const LinearVariant& variant, cudaStream_t stream);
// Computes q, k and v of one token (three parts), applies RoPE, and writes k and v straight to
// their F16 pages: this replaces the launch of rope_and_append(). Requires can_append().
bool can_append(const LinearCall& call, const AppendCall& append);
void linear_gemv_append(const LinearCall& call, const AppendCall& append, cudaStream_t stream);

// --- Flat kernels take up to kFlatTokens tokens (those of linear_staged.cu: any number). They fall
// back to linear_gemv where tensor cores cannot be used: F32 weights, rows that are not multiples
// of 16 bytes, GPUs before Ampere.
int flat_variants();
std::string flat_variant_name(int index);
bool flat_supports(int index, const LinearProblem& problem);
LinearVariant plan_flat(const LinearProblem& problem, const GpuShape& gpu);
// The plan for steps whose launches overlap, of up to kOverlapTokens tokens: kernels that let the
// next one begin to load its weights (linear_stream.cu, or others where they are faster all the
// same). A single one is a little slower than the library's, a whole step of them is faster: H200,
// OPT-6.7B, 32 sequences, 9%; Llama-2-7B, 8 sequences, 6% (both before linear_stream.cu had a
// multiprocessor to itself).
inline constexpr int kOverlapTokens = 32;
LinearVariant plan_overlapping(const LinearProblem& problem, const GpuShape& gpu);
void linear_flat(const LinearCall& call, const LinearVariant& variant, const LinearScratch& scratch,
                 cudaStream_t stream);

// --- Takes any number of tokens, type, size and alignment, without a library.
void linear_tiled(const LinearCall& call, const LinearScratch& scratch, cudaStream_t stream);

// Returns where the kinds of kernel begin if nothing was measured; m1 = 1 means that one token does
// not use GEMV. `library`: whether cuBLASLt is available.
InflectionPoints default_points(const LinearProblem& problem, bool library);

}  // namespace spillway::cuda
