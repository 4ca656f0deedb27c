// SPDX-License-Identifier: Apache-2.0
// The arguments of linear's integer kernels. Objects that are compiled for one instruction set
// include this file, so it has plain types only, no code.
#pragma once

#include <cstdint>

namespace spillway {

// The elements of k of the weights that are unpacked together for many tokens: with four tokens'
// share of the activations they stay in the first-level cache.
inline constexpr int64_t kInt8PanelDepth = 1024;
// A panel has for each 32 columns of 16 rows: bytes, scales and minima of halves, and a share of
// the super-block's scales.
inline constexpr int64_t kInt8PanelBytes = kInt8PanelDepth / 32 * (512 + 256 + 256 + 32);

// In forms with multipliers, there is one of these for each token pair and 256 columns. x = code *
// multiplier * step, so that integers can be added up over the 256 columns.
struct Int8Super {
  float d[4];  // the step times integer_unit / lift, [2][2 tokens]
  float t[4];  // `sum` is a multiple of this, likewise
  // For the first token and each 32 columns: the multiplier, and the sum of code * multiplier (for
  // each 16 with Int8Form::halves). Those of both tokens are in Int8Args::d and m.
  int16_t multiplier[8];
  int16_t sum[16];
};

// The arguments of an integer kernel. Activations are quantized in blocks of 32 columns and stored
// in token pairs, an operand of a matrix instruction after the other. A single token is paired with
// itself.
struct Int8Args {
  const uint8_t* w = nullptr;  // packed groups of 16 rows
  int64_t group_bytes = 0;
  int64_t k = 0;
  const int8_t* q = nullptr;  // [pairs][k / 8][2 tokens][8]
  const float* d = nullptr;   // [pairs][k / 32][2][2 tokens]: scales, each twice
  // Like d: scale * sum of q, which the weights' minima are multiplied with. For types whose form
  // has an offset: int32_t [pairs][k / 32][2 halves][2 tokens], the start values of the integer
  // sums.
  const float* m = nullptr;
  // In forms with multipliers: [pairs][k / 256]. Then d holds the multipliers as int32_t, and m
  // int32_t sums, of halves if the form has halves: [pairs][k / 32][2 halves][2 tokens].
  const Int8Super* super = nullptr;
  int64_t tokens = 0;
  float* out = nullptr;  // [tokens, n]
  int64_t out_stride = 0;
  const float* bias = nullptr;  // [n] or none
  bool accumulate = false;
};

// The form of activations that the kernels of a type need.
struct Int8Form {
  float lift = 1;  // kernels see the weights times this power of two: scales are divided by it
  // Kernels see the weights plus this number, for instructions that multiply unsigned by signed
  // bytes: integer sums start from -offset times the sum of q, of 32 columns (stored twice) or,
  // with `halves`, of each 16.
  int offset = 0;
  bool halves = false;  // whether sums of q are of each 16 columns, not of 32
  // Kernels multiply the columns c >= 16 of a block with whole bytes, low nibble included, which
  // saves the masking. To make up for it, the code of each column c < 16, which that nibble belongs
  // to, is smaller by a sixteenth of the code of column c + 16.
  bool skew = false;
  // If not 0, activations are quantized in blocks of 256 columns, each 32 of which have a
  // multiplier from 1 to this number (Int8Super). Kernels then need no float arithmetic inside a
  // super-block.
  int multipliers = 0;
  // Multipliers are given times the first, and the kernels' integers are divided by the second.
  int multiplier_unit = 1, integer_unit = 1;
  bool operator==(const Int8Form&) const = default;
};

// Computes the rows of groups [first, last). `panel` has kInt8PanelBytes, aligned to 16.
using Int8Kernel = void (*)(const Int8Args& args, int64_t first, int64_t last, uint8_t* panel);

// One kernel per type; null if the set has none.
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
