// SPDX-License-Identifier: Apache-2.0
// The bfloat16 matrix kernels with AMX. The file is compiled for AMX, so it contains nothing else.
//
// A tile register holds 16 rows of 64 bytes. One instruction adds to C [16 rows][16 tokens] the
// product of A [16 rows][32 columns] and B [16 pairs of columns][16 tokens][2], in 16 cycles; a
// tile is loaded in 8 cycles from the first-level cache, in about 20 from the second. With 2 x 2
// tiles of C, each step of 32 columns loads four tiles and multiplies four times (64 cycles).
// Loading all from the second-level cache would take longer than that, so k is cut: the weights'
// cut stays in the first-level cache while tokens pass, and the sums of some token tiles are kept
// in memory meanwhile.
//
// A has the layout of BF16 rows in the file, so those need no panel; a panel is still faster for
// many tokens because its rows do not compete for the same sets of the first-level cache.
#include <immintrin.h>

#include "cpu/linear/amx_tiles_inl.h"
#include "cpu/linear/linear_bf16_args.h"
#include "cpu/linear/pack_bf16_avx512_inl.h"
#include "cpu/linear/pack_groups_bf16_avx512_inl.h"

namespace spillway {
namespace {

constexpr int64_t kTile = 32;  // rows, and also tokens, of 2 x 2 tiles
constexpr int64_t kTileSums = 4 * kSumFloats;
constexpr int64_t kChunkTiles = 8;  // token tiles whose sums are kept: 32 KiB

// Adds `steps` steps of 32 columns to the sums at `sums` ([2 of rows][2 of tokens][16][16]; from
// zero on if `fresh`), for 2 x 2 tiles, or fewer where rows or tokens end. Tile registers: 0-3 C,
// 4-5 A, 6-7 B.
template <bool kTwoRows, bool kTwoTokens>
[[gnu::always_inline]] static inline void add_steps(const Bf16Product& p, const uint16_t* panel,
                                                    const uint16_t* x, int64_t steps, bool fresh,
                                                    float* sums) {
  if (fresh) {
    _tile_zero(0);
    if constexpr (kTwoTokens) _tile_zero(1);
    if constexpr (kTwoRows) _tile_zero(2);
    if constexpr (kTwoRows && kTwoTokens) _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kTileRowBytes);
    if constexpr (kTwoTokens) _tile_loadd(1, sums + kSumFloats, kTileRowBytes);
    if constexpr (kTwoRows) _tile_loadd(2, sums + 2 * kSumFloats, kTileRowBytes);
    if constexpr (kTwoRows && kTwoTokens) _tile_loadd(3, sums + 3 * kSumFloats, kTileRowBytes);
  }
  const Bf16RowLayout layout = p.layout;
  const int64_t x_ahead = p.x_ahead_steps * 2 * kTileElements;
  Bf16Ahead weights = p.ahead[0] != nullptr ? *p.ahead[0] : Bf16Ahead{};
  Bf16Ahead tokens = p.ahead[1] != nullptr ? *p.ahead[1] : Bf16Ahead{};
  for (int64_t i = 0; i < steps; ++i) {
    if (x_ahead > 0) {
#pragma GCC unroll 32
      for (int64_t at = 0; at < 2 * kTileElements; at += 32) {
        _mm_prefetch(reinterpret_cast<const char*>(x + x_ahead + at), _MM_HINT_T0);
      }
    }
    ask_ahead(weights);
    ask_ahead(tokens);
    _tile_loadd(6, x, kTileRowBytes);
    _tile_loadd(4, panel, layout.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoTokens) {
      _tile_loadd(7, x + kTileElements, kTileRowBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoRows) {
      _tile_loadd(5, panel + layout.tile_elements, layout.row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTwoTokens) _tile_dpbf16ps(3, 5, 7);
    }
    panel += layout.step_elements;
    x += 2 * kTileElements;
  }
  if (p.ahead[0] != nullptr) *p.ahead[0] = weights;
  if (p.ahead[1] != nullptr) *p.ahead[1] = tokens;
  _tile_stored(0, sums, kTileRowBytes);
  if constexpr (kTwoTokens) _tile_stored(1, sums + kSumFloats, kTileRowBytes);
  if constexpr (kTwoRows) _tile_stored(2, sums + 2 * kSumFloats, kTileRowBytes);
  if constexpr (kTwoRows && kTwoTokens) _tile_stored(3, sums + 3 * kSumFloats, kTileRowBytes);
}

// Writes the finished sums of tokens [token, token + count), which are [row][token], to out.
void put_tile(const Bf16Product& p, int64_t token, int64_t count, const float* sums) {
  for (int64_t row = 0; row < p.rows; row += 16) {
    const __mmask16 valid = valid_rows(p, row);
    for (int64_t t = 0; t < count; t += 16) {
      const float* from = sums + row / 16 * 2 * kSumFloats + t / 16 * kSumFloats;
      __m512i v[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_si512(from + 16 * i);
      transpose_words(v);
      if (count - t >= 16) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          put_sums(p, token + t + i, row, valid, _mm512_castsi512_ps(v[i]));
        }
      } else {
        alignas(64) float rows[256];
        for (int i = 0; i < 16; ++i) _mm512_store_si512(rows + 16 * i, v[i]);
        for (int64_t i = 0; i < count - t; ++i) {
          put_sums(p, token + t + i, row, valid, _mm512_load_ps(rows + 16 * i));
        }
      }
    }
  }
}

template <bool kTwoRows>
void multiply_rows(const Bf16Product& p) {
  alignas(64) float own_sums[kChunkTiles * kTileSums];
  float* sums = p.sums != nullptr ? p.sums : own_sums;
  const int64_t steps = p.depth / kBf16Step;
  const int64_t cut_steps = p.cut_steps > 0 ? p.cut_steps : steps;
  const int64_t tiles = (p.tokens + kTile - 1) / kTile;
  const int64_t chunk_tiles = p.sums != nullptr ? tiles : kChunkTiles;
  // Sums that are not kept share one place, which then stays in the first-level cache.
  const int64_t tile_sums = p.sums != nullptr || cut_steps < steps ? kTileSums : 0;
  for (int64_t chunk = 0; chunk < tiles; chunk += chunk_tiles) {
    const int64_t last = chunk + chunk_tiles < tiles ? chunk + chunk_tiles : tiles;
    for (int64_t cut = 0; cut < steps; cut += cut_steps) {
      const int64_t count = steps - cut < cut_steps ? steps - cut : cut_steps;
      const uint16_t* panel = p.panel + cut * p.layout.step_elements;
      for (int64_t tile = chunk; tile < last; ++tile) {
        const uint16_t* x = p.x + tile * p.x_tile_stride + cut * 2 * kTileElements;
        const int64_t tokens = p.tokens - tile * kTile < kTile ? p.tokens - tile * kTile : kTile;
        const bool fresh = p.first && cut == 0;
        float* to = sums + (tile - chunk) * tile_sums;
        if (tokens > 16) {
          add_steps<kTwoRows, true>(p, panel, x, count, fresh, to);
        } else {
          add_steps<kTwoRows, false>(p, panel, x, count, fresh, to);
        }
        if (p.last && cut + count == steps) put_tile(p, tile * kTile, tokens, to);
      }
    }
  }
}

void multiply(const Bf16Product& p) {
  start_tiles();
  if (p.rows > 16) {
    multiply_rows<true>(p);
  } else {
    multiply_rows<false>(p);
  }
  _tile_release();
}

Bf16Fill try_fill(DType type, bool packed) {
  if (!packed) {
    if (type == DType::kF16) return fill_rows<HalfRow, 2>;
    return type == DType::kBF16 ? fill_rows<BfloatRow, 2> : nullptr;
  }
  switch (type) {
    case DType::kQ4_0:
      return fill_groups<PackedQ4_0, 2>;
    case DType::kQ4_1:
      return fill_groups<PackedQ4_1, 2>;
    case DType::kQ5_0:
      return fill_groups<PackedQ5_0, 2>;
    case DType::kQ5_1:
      return fill_groups<PackedQ5_1, 2>;
    case DType::kQ8_0:
      return fill_groups<PackedQ8_0, 2>;
    case DType::kQ2_K:
      return fill_groups<PackedQ2_K, 2>;
    case DType::kQ3_K:
      return fill_groups<PackedQ3_K, 2>;
    case DType::kQ4_K:
      return fill_groups<PackedQ4_K, 2>;
    case DType::kQ5_K:
      return fill_groups<PackedQ5_K, 2>;
    case DType::kQ6_K:
      return fill_groups<PackedQ6_K, 2>;
    case DType::kG4:
      return fill_groups<PackedG4, 2>;
    default:
      return nullptr;
  }
}

}  // namespace

// The sizes mean 128 rows of 1024 columns, as many of 64 tokens, and the next ones of both being
// prefetched: 0.8 MB of the second-level cache, which two threads may share.
constinit const Bf16Kernels kAmxBf16Kernels = {.row_tile = kTile,
                                               .token_tile = kTile,
                                               .max_depth = 1024,
                                               .panels = 4,
                                               .chunk_tokens = 2 * kTile,
                                               .direct_tokens = 128,
                                               .direct_depth = 2048,
                                               .cut_steps = 16,
                                               .x_ahead_steps = 0,
                                               .asks_ahead = true,
                                               .sweep_tokens = 512,
                                               .pack_rows = pack_rows_in_steps<kTile>,
                                               .pack_tokens = pack_pair_tiles<2>,
                                               .multiply = multiply,
                                               .try_fill = try_fill};

}  // namespace spillway
