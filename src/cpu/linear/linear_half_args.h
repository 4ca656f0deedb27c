// SPDX-License-Identifier: Apache-2.0
// What the kernels for few tokens on plain 16-bit weights are made of. Included by objects that are
// compiled for one instruction set: plain types only, no code.
//
// linear_half.cc drives them: activations are brought once into the form that the instructions want
// (in groups of tokens), then every worker reads its rows once, as they lie in the file.
#pragma once

#include <cstdint>

namespace spillway {

// Columns that a kernel takes at a time: a cache line of a row. Packed activations are padded with
// zeros to a multiple.
inline constexpr int64_t kHalfStep = 32;

struct HalfProduct {
  const uint8_t* w = nullptr;  // [n, k] stored, at any byte
  int64_t row_bytes = 0;
  int64_t k = 0;
  const uint16_t* x = nullptr;     // what pack made of the group's tokens
  const float* factors = nullptr;  // [tokens] that sums are multiplied with
  int64_t tokens = 0;              // of this group
  float* out = nullptr;            // [tokens, n]
  int64_t out_stride = 0;
  const float* bias = nullptr;  // [n] or none, added too
  bool accumulate = false;      // to what out holds; otherwise out is overwritten
};

// The way to multiply a group of at most `tokens` tokens.
struct HalfKernel {
  int64_t tokens = 0;
  // 16-bit elements of packed activations per column, for the whole group.
  int64_t x_width = 0;
  // `count` <= tokens rows of k floats, `stride` apart -> x_width * (k rounded up to kHalfStep)
  // elements and `tokens` factors.
  void (*pack)(const float* x, int64_t stride, int64_t count, int64_t k, uint16_t* packed,
               float* factors) = nullptr;
  // Whether columns can be packed apart from others, from multiples of kHalfStep on.
  bool packs_apart = false;
  // Rows [begin, end) of w. A row's result does not depend on the others.
  void (*multiply)(const HalfProduct& product, int64_t begin, int64_t end) = nullptr;
};

// Kernels for up to 1, 2, ... tokens, ascending; what is wider takes several groups of the last.
struct HalfKernels {
  const HalfKernel* kernels = nullptr;
  int64_t count = 0;
  int64_t least_tokens = 1;  // for less, what else there is (F32 at last) is at least as fast
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
