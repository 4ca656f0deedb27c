// SPDX-License-Identifier: Apache-2.0
// What the integer kernels of linear are given. Included by objects that are compiled for one
// instruction set: plain types only, no code.
#pragma once

#include <cstdint>

namespace spillway {

// k elements of the weights that are unpacked at once for many tokens: with four tokens' share of
// the activations they stay in the first-level cache.
inline constexpr int64_t kInt8PanelDepth = 1024;
// Per 32 columns of 16 rows: bytes, scales and minima of halves, a share of the super-block's.
inline constexpr int64_t kInt8PanelBytes = kInt8PanelDepth / 32 * (512 + 256 + 256 + 32);

// What forms with multipliers have for each token pair and 256 columns. x = code * multiplier *
// step, so that integers can be added up over the 256 columns.
struct Int8Super {
  float d[4];  // the step (with all that kernels' integers are multiples of), [2][2 tokens]
  float t[4];  // what `sum` is a multiple of, likewise
  // Of the first token, of each 32 columns: the multiplier, the sum of code * multiplier (with
  // Int8Form::halves of each 16). Of both tokens they are in Int8Args::d and m.
  int16_t multiplier[8];
  int16_t sum[16];
};

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
  // Of forms with multipliers: [pairs][k / 256]. Then d holds int32_t, the multipliers, and m
  // int32_t sums, of halves where there are halves: [pairs][k / 32][2 halves][2 tokens].
  const Int8Super* super = nullptr;
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
  // Not 0: activations are quantized in blocks of 256 columns, each 32 of which have a multiplier
  // from 1 to this number (Int8Super). Kernels then have no float arithmetic inside a super-block.
  int multipliers = 0;
  // What multipliers are given times, and what kernels' integers are then divided by.
  int multiplier_unit = 1, integer_unit = 1;
  bool operator==(const Int8Form&) const = default;
};

// Computes rows of groups [first, last). `panel` has kInt8PanelBytes, aligned to 16.
using Int8Kernel = void (*)(const Int8Args& args, int64_t first, int64_t last, uint8_t* panel);

// One per type; absent where the set has none.
struct Int8Kernels {
  Int8Kernel q4_0 = nullptr, q4_1 = nullptr, q5_0 = nullptr, q5_1 = nullptr, q8_0 = nullptr,
             q2_k = nullptr, q3_k = nullptr, q4_k = nullptr, q5_k = nullptr, q6_k = nullptr,
             g4 = nullptr;
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
