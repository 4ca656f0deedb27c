// SPDX-License-Identifier: Apache-2.0
// The parts of the kernels for few tokens on plain 16-bit weights. Objects that are compiled for
// one instruction set include this file, so it has plain types only, no code.
//
// linear_half.cc calls them: activations are converted once to the form of the instructions (in
// groups of tokens), then every worker reads its rows once, as they are stored in the file.
#pragma once

#include <cstdint>

namespace spillway {

// A kernel takes this many columns in one step: a cache line of a row. Packed activations are
// padded with zeros to a multiple.
inline constexpr int64_t kHalfStep = 32;

struct HalfProduct {
  const uint8_t* w = nullptr;  // [n, k], stored at any byte
  int64_t row_bytes = 0;
  int64_t k = 0;
  const uint16_t* x = nullptr;     // the group's tokens as pack() made them
  const float* factors = nullptr;  // [tokens], which sums are multiplied with
  int64_t tokens = 0;              // of this group
  float* out = nullptr;            // [tokens, n]
  int64_t out_stride = 0;
  const float* bias = nullptr;  // [n] or none, added too
  bool accumulate = false;      // whether to add to out; otherwise out is overwritten
};

// Multiplies a group of at most `tokens` tokens.
struct HalfKernel {
  int64_t tokens = 0;
  // The 16-bit elements of packed activations per column, for the whole group.
  int64_t x_width = 0;
  // Packs `count` <= tokens rows of k floats, `stride` apart, into x_width * (k rounded up to
  // kHalfStep) elements and `tokens` factors.
  void (*pack)(const float* x, int64_t stride, int64_t count, int64_t k, uint16_t* packed,
               float* factors) = nullptr;
  // Whether columns from multiples of kHalfStep on can be packed separately.
  bool packs_rows = false;
  // Multiplies rows [begin, end) of w. A row's result does not depend on the others.
  void (*multiply)(const HalfProduct& product, int64_t begin, int64_t end) = nullptr;
};

// Kernels for up to 1, 2, ... tokens, ascending; more tokens take several groups of the last
// kernel.
struct HalfKernels {
  const HalfKernel* kernels = nullptr;
  int64_t count = 0;
  int64_t least_tokens = 1;  // for fewer, the other kernels (lastly F32) are at least as fast
  int64_t most_tokens = 0;   // for more, likewise; 0: any number
};

#if defined(__aarch64__)
extern const HalfKernels kF16Fp16fmlKernels;  // products of halves added to floats
extern const HalfKernels kBf16BfmmlaKernels;  // bfloat16 dot products and matrices
extern const HalfKernels kF16BfmmlaKernels;   // the same for halves, rounded on the way
#elif defined(__x86_64__)
extern const HalfKernels kBf16Avx512Kernels;  // products in F32, nothing rounded
extern const HalfKernels kF16Avx512Kernels;
extern const HalfKernels kBf16AmxKernels;  // bfloat16 tiles
extern const HalfKernels kF16AmxKernels;   // the same for halves, in two parts or rounded
#endif

}  // namespace spillway
