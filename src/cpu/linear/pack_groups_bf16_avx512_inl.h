// SPDX-License-Identifier: Apache-2.0
// Converts packed groups (tensor/packed_layout.h) to tiles of bfloat16 with AVX-512: the result is
// that of decoding rows to F32 and pack_rows_in_steps(), without the way through memory.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/linear/linear_int8_types_avx512_inl.h"
#include "cpu/linear/pack_bf16_avx512_inl.h"

namespace spillway {
namespace {

[[gnu::always_inline]] static inline __m512 floats_at(const int8_t* bytes) {
  return floats_of_signed(load128(reinterpret_cast<const uint8_t*>(bytes)));
}

// Converts sub-block s of a group's block to a tile [16 rows][32 columns].
template <class W>
[[gnu::always_inline]] static inline void put_group_tile(const uint8_t* block, int s,
                                                         uint16_t* tile) {
  alignas(64) int8_t q[512];
  alignas(64) float scale[2][16], minimum[2][16];  // of columns 0-15 and 16-31
  put_rows(W::bits(block, s), W::kOffset, q);
  const Scales scales = W::scales(block, s);
  if constexpr (W::kHalves) {
    _mm512_store_ps(scale[0], _mm512_mul_ps(scales.scale, scales.half[0]));
    _mm512_store_ps(scale[1], _mm512_mul_ps(scales.scale, scales.half[1]));
  } else {
    _mm512_store_ps(scale[0], scales.scale);
  }
  constexpr int kSecond = W::kHalves ? 1 : 0;
  if constexpr (W::kMinima) _mm512_store_ps(minimum[0], scales.minimum);
  if constexpr (W::kMinima && W::kHalves) _mm512_store_ps(minimum[1], scales.second_minimum);
#pragma GCC unroll 4
  for (int r = 0; r < 16; ++r) {
    const __m512 by[2] = {_mm512_set1_ps(scale[0][r]), _mm512_set1_ps(scale[kSecond][r])};
    __m512 v[2] = {floats_at(q + 32 * r), floats_at(q + 32 * r + 16)};
    for (int i = 0; i < 2; ++i) {
      if constexpr (W::kMinima) {
        v[i] = _mm512_fmadd_ps(v[i], by[i], _mm512_set1_ps(minimum[i * kSecond][r]));
      } else {
        v[i] = _mm512_mul_ps(v[i], by[i]);
      }
    }
    _mm512_storeu_si512(tile + 32 * r, rounded_bf16(v[0], v[1]));
  }
}

// Implements Bf16Fill for packed groups, for tiles of 16 rows like those of pack_rows_in_steps().
template <class W, int kTiles>
void fill_groups(const uint8_t* w, int64_t row_bytes, int64_t count, int64_t depth,
                 uint16_t* panel) {
  for (int64_t g = 0; g < kTiles; ++g) {
    const uint8_t* block = w + 16 * g * row_bytes;
    uint16_t* tile = panel + g * 512;
    for (int64_t k = 0; k < depth; k += 32 * W::kSubs, block += W::kBytes) {
      for (int s = 0; s < W::kSubs; ++s, tile += kTiles * 512) {
        if (16 * g < count) {
          put_group_tile<W>(block, s, tile);
        } else {
          for (int r = 0; r < 16; ++r) {
            _mm512_storeu_si512(tile + 32 * r, _mm512_setzero_si512());
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway
