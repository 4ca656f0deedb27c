// SPDX-License-Identifier: Apache-2.0
// What the integer kernels of linear are given. Included by objects that are compiled for one
// instruction set: plain types only, no code.
#pragma once

#include <cstdint>

namespace spillway {

// k elements of the weights that are unpacked at once for many tokens: with four tokens' share of
// the activations they stay in the first-level cache.
inline constexpr int64_t kInt8PanelDepth = 1024;
// Per 32 columns of 16 rows: bytes, scales, minima, scales of halves.
inline constexpr int64_t kInt8PanelBytes = kInt8PanelDepth / 32 * (512 + 128 + 128 + 256);

// Activations are quantized in blocks of 32 columns and lie in token pairs, an operand of a matrix
// instruction at a time. A single token is paired with itself.
struct Int8Args {
  const uint8_t* w = nullptr;  // packed groups of 16 rows
  int64_t group_bytes = 0;
  int64_t k = 0;
  const int8_t* q = nullptr;  // [pairs][k / 8][2 tokens][8]
  const float* d = nullptr;   // [pairs][k / 32][2][2 tokens]: scales, each twice
  // As d: scale * sum of q, what a minimum of the weights multiplies. Of types whose form has an
  // offset: int32_t [pairs][k / 32][2 halves][2 tokens], what the integer sums start from.
  const float* m = nullptr;
  int64_t tokens = 0;
  float* out = nullptr;  // [tokens, n]
  int64_t out_stride = 0;
  const float* bias = nullptr;  // [n] or none
  bool accumulate = false;
};

// What the kernels of a type want the activations to be.
struct Int8Form {
  float lift = 1;  // kernels see the weights times this power of two: scales are divided by it
  // Kernels see the weights plus this number, for instructions that multiply unsigned by signed
  // bytes: integer sums start from -offset times the sum of q (of 32 columns, there twice)...
  int offset = 0;
  bool halves = false;  // ...or of each 16 columns
  // Kernels multiply the columns c >= 16 of a block with whole bytes, low nibble included, which
  // saves them the masking. So the codes of columns c < 16, which that nibble belongs to, are less
  // by a sixteenth of the code of column c + 16.
  bool skew = false;
};

// Computes rows of groups [first, last). `panel` has kInt8PanelBytes, aligned to 16.
using Int8Kernel = void (*)(const Int8Args& args, int64_t first, int64_t last, uint8_t* panel);

// One per type; absent where the set has none.
struct Int8Kernels {
  Int8Kernel q4_0 = nullptr, q4_1 = nullptr, q5_0 = nullptr, q5_1 = nullptr, q8_0 = nullptr,
             q3_k = nullptr, q4_k = nullptr, q5_k = nullptr, q6_k = nullptr, g4 = nullptr;
};

#if defined(__aarch64__)
extern const Int8Kernels kDotprodKernels;  // ARMv8.2 dot product
extern const Int8Kernels kI8mmKernels;     // ARMv8.6 8-bit matrix multiplication
#elif defined(__x86_64__)
extern const Int8Kernels kAvx2Kernels;
extern const Int8Kernels kAvxVnniKernels;     // Alder Lake and later, without AVX-512
extern const Int8Kernels kAvx512VnniKernels;  // Cascade Lake, Zen 4 and later
#endif

}  // namespace spillway
