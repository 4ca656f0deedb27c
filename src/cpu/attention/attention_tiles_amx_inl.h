// SPDX-License-Identifier: Apache-2.0
// Tiles of AMX for attention over int8 and int4 pages, and rows of 32-bit words turned to columns.
//
// Only static functions: each object that includes this is compiled for instructions of its own.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/attention/attention_avx512_inl.h"
#include "cpu/linear/amx_tiles_inl.h"

namespace spillway {
namespace {

constexpr int64_t kTileBytes = 1024;
constexpr int kTileQueryChunk = 8;  // queries that are done together

// Tiles of 16 rows, of which the first `narrow` have rows of `bytes`, and the others of 64.
[[gnu::always_inline]] static inline void start_tiles(int narrow, int64_t bytes) {
  TileConfig config;
  for (int i = 0; i < narrow; ++i) config.row_bytes[i] = static_cast<uint16_t>(bytes);
  order_with_tiles(&config);  // g++ 12 thinks that only 8 bytes of it are read
  _tile_loadconfig(&config);
}

// Words with even and with odd numbers of two vectors.
[[gnu::always_inline]] static inline __m512i even_words(__m512i a, __m512i b) {
  const __m512i from = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_epi32(a, from, b);
}
[[gnu::always_inline]] static inline __m512i odd_words(__m512i a, __m512i b) {
  const __m512i from = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutex2var_epi32(a, from, b);
}

// x as [16][N] words becomes [N][16], N = 2, 4 or 8. A round moves the lowest bit of a word's
// number to the top.
template <int N>
[[gnu::always_inline]] static inline void rows_to_columns(__m512i* x) {
#pragma GCC unroll 3
  for (int round = 1; round < N; round *= 2) {
    __m512i y[N];
#pragma GCC unroll 4
    for (int i = 0; i < N / 2; ++i) {
      y[i] = even_words(x[2 * i], x[2 * i + 1]);
      y[N / 2 + i] = odd_words(x[2 * i], x[2 * i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) x[i] = y[i];
  }
}

}  // namespace
}  // namespace spillway
