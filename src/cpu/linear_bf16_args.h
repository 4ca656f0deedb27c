// SPDX-License-Identifier: Apache-2.0
// What the bfloat16 matrix kernels of linear are made of. Included by objects that are compiled for
// one instruction set: plain types only, no code.
//
// linear_bf16.cc drives them for batches of tokens: activations are rounded to bfloat16 once, a
// panel of weight rows is decoded, rounded and laid out as the instructions want it, and multiplied
// with all tokens. Any weight type can pass through a panel.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// k is a multiple of this wherever these kernels are used.
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
  const float* bias = nullptr;  // [rows] or none, added too
  bool add = false;             // to what out holds; otherwise out is overwritten
};

// Lays out `count` rows (a multiple of 16 where they are packed groups), columns [0, depth), from
// where the first one's columns begin.
using Bf16Fill = void (*)(const uint8_t* w, int64_t row_bytes, int64_t count, int64_t depth,
                          uint16_t* panel);

struct Bf16Kernels {
  int64_t row_tile = 0;    // a multiple of 16
  int64_t token_tile = 0;  // tokens and rows are padded with zeros to whole tiles
  // How deep a panel is at most: all of k where sums stay in tile registers, else a cut that fits
  // the first-level cache. A multiple of 256.
  int64_t max_depth = 0;
  // Panels that are multiplied with a chunk of tokens before the next chunk comes: panels stay in
  // the second-level cache, a chunk in the first, and activations, which all workers read, are
  // fetched once for all these rows.
  int64_t panels = 1;
  int64_t chunk_tokens = 0;  // a multiple of token_tile
  // `count` <= row_tile rows of `depth` floats, `stride` apart -> row_tile * depth elements.
  void (*pack_rows)(const float* rows, int64_t stride, int64_t count, int64_t depth,
                    uint16_t* panel) = nullptr;
  // `count` <= token_tile tokens likewise -> token_tile * depth elements.
  void (*pack_tokens)(const float* x, int64_t stride, int64_t count, int64_t depth,
                      uint16_t* tile) = nullptr;
  void (*multiply)(const Bf16Product& product) = nullptr;
  // Straight from stored rows (of F16, BF16) or packed groups (others) to a panel; null where there
  // is no such way: then rows are decoded to floats and packed.
  Bf16Fill (*try_fill)(DType type, bool packed) = nullptr;
};

#if defined(__aarch64__)
extern const Bf16Kernels kBfmmlaKernels;  // ARMv8.6 bfloat16 matrix multiplication
#elif defined(__x86_64__)
extern const Bf16Kernels kAvx512Bf16Kernels;  // Cooper Lake, Zen 4 and later
extern const Bf16Kernels kAmxBf16Kernels;     // Sapphire Rapids and later
#endif

}  // namespace spillway
