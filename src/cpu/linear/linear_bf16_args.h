// SPDX-License-Identifier: Apache-2.0
// The parts of linear's bfloat16 matrix kernels. Objects that are compiled for one instruction set
// include this file, so it has plain types only, no code.
//
// linear_bf16.cc calls them for batches of tokens: activations are rounded to bfloat16 once; a
// panel of weight rows is decoded, rounded, brought into the layout of the instructions, and
// multiplied with all tokens. Any weight type can pass through a panel; rows that already have the
// layout of the instructions need none.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// k is a multiple of this wherever these kernels are used.
inline constexpr int64_t kBf16Step = 32;

// A region of a matrix that will be needed soon: kernels prefetch some of its cache lines at each
// step, so that it arrives while they multiply.
struct Bf16Ahead {
  const uint8_t* row = nullptr;
  int64_t at = 0;      // position in the row
  int64_t bytes = 0;   // of each row
  int64_t stride = 0;  // from one row to the next
  int64_t rows = 0;    // rows left; 0: nothing to prefetch
  int64_t lines = 0;   // cache lines to prefetch at each step
};

// The layout of a panel's rows: steps of kBf16Step columns, in each step tiles of 16 rows.
struct Bf16RowLayout {
  int64_t row_bytes = 64;        // from one row of a tile to the next
  int64_t step_elements = 1024;  // from one step to the next
  int64_t tile_elements = 512;   // from one tile to the next
};

struct Bf16Product {
  const uint16_t* panel = nullptr;  // one tile of rows, k in [0, depth)
  Bf16RowLayout layout = {};        // not a panel's if the kernels read stored rows
  int64_t cut_steps = 0;            // see Bf16Kernels
  int64_t x_ahead_steps = 0;
  Bf16Ahead* ahead[2] = {};  // of weights, of activations; null: nothing to prefetch
  // Kernels with sweep_tokens keep their sums here for the next depth: row_tile * token_tile floats
  // for each token tile. `out` is written with the last depth.
  float* sums = nullptr;
  bool first = true, last = true;
  const uint16_t* x = nullptr;  // the token tiles, same k, `x_tile_stride` elements apart
  int64_t x_tile_stride = 0;
  int64_t depth = 0;  // a multiple of kBf16Step
  int64_t tokens = 0;
  int64_t rows = 0;      // valid rows of the tile; others must not be written
  float* out = nullptr;  // [tokens, rows] at the tile's first row
  int64_t out_stride = 0;
  const float* bias = nullptr;  // [rows] or none, added too
  bool add = false;             // whether to add to out; otherwise out is overwritten
};

// Lays out `count` rows (a multiple of 16 for packed groups), columns [0, depth); `w` points to
// where the first row's columns begin.
using Bf16Fill = void (*)(const uint8_t* w, int64_t row_bytes, int64_t count, int64_t depth,
                          uint16_t* panel);

struct Bf16Kernels {
  int64_t row_tile = 0;    // a multiple of 16
  int64_t token_tile = 0;  // tokens and rows are padded with zeros to whole tiles
  // The greatest depth of a panel: all of k if sums stay in tile registers, else a cut that fits in
  // the first-level cache. A multiple of 256.
  int64_t max_depth = 0;
  // This many panels are multiplied with a chunk of tokens before the next chunk comes: panels stay
  // in the second-level cache and a chunk in the first, and activations, which all workers read,
  // are fetched once for all these rows.
  int64_t panels = 1;
  int64_t chunk_tokens = 0;  // a multiple of token_tile
  // Kernels that can read stored BF16 rows do so for at most this many tokens, to this depth in one
  // pass; for more tokens a panel's order, once made, is faster. 0: they cannot.
  int64_t direct_tokens = 0;
  int64_t direct_depth = 0;
  // The steps of k whose weights stay in the first-level cache while a chunk's tokens pass and
  // their sums are kept in memory; 0: all, so that sums stay in registers and weights come from the
  // second-level cache.
  int64_t cut_steps = 0;
  int64_t x_ahead_steps = 0;  // how far ahead activations are prefetched to the first-level cache
  bool asks_ahead = false;    // whether multiply() uses `ahead`
  // The tokens whose sums are kept, in the order of the kernel, over all depths before panels are
  // made again for more tokens; 0: sums are added to `out` at each depth, for all tokens.
  int64_t sweep_tokens = 0;
  // Packs `count` <= row_tile rows of `depth` floats, `stride` apart, into row_tile * depth
  // elements.
  void (*pack_rows)(const float* rows, int64_t stride, int64_t count, int64_t depth,
                    uint16_t* panel) = nullptr;
  // Packs `count` <= token_tile tokens likewise into token_tile * depth elements.
  void (*pack_tokens)(const float* x, int64_t stride, int64_t count, int64_t depth,
                      uint16_t* tile) = nullptr;
  void (*multiply)(const Bf16Product& product) = nullptr;
  // Returns the function that fills a panel directly from stored rows (of F16, BF16) or packed
  // groups (other types); null if there is none: then rows are decoded to floats and packed.
  Bf16Fill (*try_fill)(DType type, bool packed) = nullptr;
};

#if defined(__aarch64__)
extern const Bf16Kernels kBfmmlaKernels;  // ARMv8.6 bfloat16 matrix multiplication
#elif defined(__x86_64__)
extern const Bf16Kernels kAvx512Bf16Kernels;  // Cooper Lake, Zen 4 and later
extern const Bf16Kernels kAmxBf16Kernels;     // Sapphire Rapids and later
#endif

}  // namespace spillway
