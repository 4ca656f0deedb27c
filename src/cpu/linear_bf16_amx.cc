// SPDX-License-Identifier: Apache-2.0
// The bfloat16 matrix kernels with AMX; compiled for it, so nothing else here.
//
// A tile register holds 16 rows of 64 bytes. One instruction adds to C [16 rows][16 tokens] the
// product of A [16 rows][32 columns] and B [16 pairs of columns][16 tokens][2], in 16 cycles; a
// tile is loaded in 8 from the first-level cache, in about 20 from the second. With 2 x 2 tiles of
// C, each step of 32 columns loads four tiles and multiplies four times (64 cycles). All from the
// second-level cache would take longer than that, so k is cut: the weights' cut stays in the
// first-level cache while tokens pass, and the sums of some token tiles wait in memory.
#include <immintrin.h>

#include "cpu/linear_bf16_args.h"
#include "cpu/pack_bf16_avx512_inl.h"
#include "cpu/pack_groups_bf16_avx512_inl.h"

namespace spillway {
namespace {

constexpr int64_t kTileBytes = 1024, kTileElements = 512;
constexpr int64_t kTile = 32;            // rows, and tokens, of 2 x 2 tiles
constexpr int64_t kCutSteps = 16;        // of 32 columns: 32 KiB of weights
constexpr int64_t kChunkTiles = 8;       // token tiles whose sums wait: 32 KiB
constexpr int64_t kRowOf = 64;           // bytes from one tile row to the next
constexpr int64_t kSumFloats = 4 * 256;  // of one 2 x 2 tile

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kConfig;

// 2 x 2 tiles, or less where rows or tokens end: `steps` steps of 32 columns are added to the sums
// at `sums` ([2 of rows][2 of tokens][16][16]; from zero on if `fresh`). Tile registers: 0-3 C, 4-5
// A, 6-7 B.
template <bool kTwoRows, bool kTwoTokens>
[[gnu::always_inline]] static inline void add_steps(const uint16_t* panel, const uint16_t* x,
                                                    int64_t steps, bool fresh, float* sums) {
  if (fresh) {
    _tile_zero(0);
    if constexpr (kTwoTokens) _tile_zero(1);
    if constexpr (kTwoRows) _tile_zero(2);
    if constexpr (kTwoRows && kTwoTokens) _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kRowOf);
    if constexpr (kTwoTokens) _tile_loadd(1, sums + 256, kRowOf);
    if constexpr (kTwoRows) _tile_loadd(2, sums + 512, kRowOf);
    if constexpr (kTwoRows && kTwoTokens) _tile_loadd(3, sums + 768, kRowOf);
  }
  for (int64_t i = 0; i < steps; ++i) {
    // Tokens come from the second-level cache, in order: ask for those of two steps on.
#pragma GCC unroll 32
    for (int64_t at = 0; at < 2 * kTileBytes; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(x) + 4 * kTileBytes + at, _MM_HINT_T0);
    }
    _tile_loadd(6, x, kRowOf);
    _tile_loadd(4, panel, kRowOf);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoTokens) {
      _tile_loadd(7, x + kTileElements, kRowOf);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoRows) {
      _tile_loadd(5, panel + kTileElements, kRowOf);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTwoTokens) _tile_dpbf16ps(3, 5, 7);
    }
    panel += 2 * kTileElements;
    x += 2 * kTileElements;
  }
  _tile_stored(0, sums, kRowOf);
  if constexpr (kTwoTokens) _tile_stored(1, sums + 256, kRowOf);
  if constexpr (kTwoRows) _tile_stored(2, sums + 512, kRowOf);
  if constexpr (kTwoRows && kTwoTokens) _tile_stored(3, sums + 768, kRowOf);
}

// The finished sums of tokens [token, token + count), which are [row][token], to out.
void put_tile(const Bf16Product& p, int64_t token, int64_t count, const float* sums) {
  for (int64_t row = 0; row < p.rows; row += 16) {
    const __mmask16 valid = valid_rows(p, row);
    for (int64_t t = 0; t < count; t += 16) {
      const float* from = sums + row / 16 * 512 + t / 16 * 256;
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
  alignas(64) float sums[kChunkTiles * kSumFloats];
  const int64_t steps = p.depth / kBf16Step;
  const int64_t tiles = (p.tokens + kTile - 1) / kTile;
  for (int64_t chunk = 0; chunk < tiles; chunk += kChunkTiles) {
    const int64_t last = chunk + kChunkTiles < tiles ? chunk + kChunkTiles : tiles;
    for (int64_t cut = 0; cut < steps; cut += kCutSteps) {
      const int64_t count = steps - cut < kCutSteps ? steps - cut : kCutSteps;
      const uint16_t* panel = p.panel + cut * 2 * kTileElements;
      for (int64_t tile = chunk; tile < last; ++tile) {
        const uint16_t* x = p.x + tile * p.x_tile_stride + cut * 2 * kTileElements;
        const int64_t tokens = p.tokens - tile * kTile < kTile ? p.tokens - tile * kTile : kTile;
        float* to = sums + (tile - chunk) * kSumFloats;
        if (tokens > 16) {
          add_steps<kTwoRows, true>(panel, x, count, cut == 0, to);
        } else {
          add_steps<kTwoRows, false>(panel, x, count, cut == 0, to);
        }
        if (cut + count == steps) put_tile(p, tile * kTile, tokens, to);
      }
    }
  }
}

void multiply(const Bf16Product& p) {
  _tile_loadconfig(&kConfig);
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

constinit const Bf16Kernels kAmxBf16Kernels = {.row_tile = kTile,
                                               .token_tile = kTile,
                                               .max_depth = 4096,
                                               .panels = 4,
                                               .chunk_tokens = 4 * kTile,
                                               .pack_rows = pack_rows_in_steps<kTile>,
                                               .pack_tokens = pack_pair_tiles<2>,
                                               .multiply = multiply,
                                               .try_fill = try_fill};

}  // namespace spillway
