// SPDX-License-Identifier: Apache-2.0
// What the bfloat16 matrix kernels of linear are made of. Included by objects that are compiled for
// one instruction set: plain types only, no code.
//
// linear_bf16.cc drives them for batches of tokens: activations are rounded to bfloat16 once, a
// panel of weight rows is decoded to F32, rounded and laid out as the instructions want it, and
// multiplied with all tokens. Any weight type can pass through a panel.
#pragma once

#include <cstdint>

namespace spillway {

// Tokens and rows are laid out in tiles, padded with zeros to whole ones; k is padded with zeros to
// a multiple of kBf16Step.
inline constexpr int64_t kBf16Step = 32;

struct Bf16Product {
  const uint16_t* panel = nullptr;  // one tile of rows, k in [0, depth)
  const uint16_t* x = nullptr;      // the token tiles, same k, `x_tile_stride` elements apart
  int64_t x_tile_stride = 0;
  int64_t depth = 0;  // a multiple of kBf16Step
  int64_t tokens = 0;
  int64_t rows = 0;      // valid ones of the tile; others must not be written
  float* out = nullptr;  // [tokens, rows] at the tile's first row
  int64_t out_stride = 0;
  const float* bias = nullptr;  // [rows] or none: added where `add` is false, or to what is there
  bool add = false;             // to what out holds; otherwise out is overwritten
};

// Packed groups of 16 rows (tensor/packed_layout.h) straight to a panel: `count` groups, up to
// row_tile / 16, `group_bytes` apart; `groups` is where column k = 0 of the panel lies in the
// first, `depth` is whole blocks.
using Bf16GroupPacker = void (*)(const uint8_t* groups, int64_t group_bytes, int64_t count,
                                 int64_t depth, uint16_t* panel);
struct Bf16GroupPackers {
  Bf16GroupPacker q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k;
};

struct Bf16Kernels {
  int64_t row_tile = 0;  // a multiple of 16
  int64_t token_tile = 0;
  // Whether a panel is best as deep as k (sums stay in tile registers) or in cuts that fit the
  // first-level cache.
  int64_t max_depth = 0;
  // `count` <= row_tile rows of `depth` floats, `stride` apart -> row_tile * depth elements.
  void (*pack_rows)(const float* rows, int64_t stride, int64_t count, int64_t depth,
                    uint16_t* panel) = nullptr;
  // `count` <= token_tile tokens likewise -> token_tile * depth elements.
  void (*pack_tokens)(const float* x, int64_t stride, int64_t count, int64_t depth,
                      uint16_t* tile) = nullptr;
  void (*multiply)(const Bf16Product& product) = nullptr;
  // Optional, faster than pack_rows after decoding.
  const Bf16GroupPackers* group_packers = nullptr;
};

#if defined(__aarch64__)
extern const Bf16Kernels kBfmmlaKernels;  // ARMv8.6 bfloat16 matrix multiplication
#elif defined(__x86_64__)
extern const Bf16Kernels kAvx512Bf16Kernels;  // Cooper Lake, Zen 4 and later
extern const Bf16Kernels kAmxBf16Kernels;     // Sapphire Rapids and later
#endif

}  // namespace spillway
