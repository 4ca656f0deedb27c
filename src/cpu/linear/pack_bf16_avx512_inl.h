// SPDX-License-Identifier: Apache-2.0
// Rounds to bfloat16 and transposes with AVX-512, for the kernels of linear_bf16_args.h. Objects
// that are compiled for it include this file, so it has static functions only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/linear/linear_bf16_args.h"

namespace spillway {
namespace {

static_assert(kBf16Step == 32);  // a vector of bfloat16

// Transposes 16 vectors of 16 words.
[[gnu::always_inline]] static inline void transpose_words(__m512i v[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Here lane j of v[4 i + c] is column 4 j + c of vectors 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xee);
    v[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    v[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    v[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    v[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

// Rounds to the nearest bfloat16, ties to even.
[[gnu::always_inline]] static inline __m512i rounded_bf16(__m512 low, __m512 high) {
  const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
  __m512i bits;
  static_assert(sizeof(both) == sizeof(bits));
  __builtin_memcpy(&bits, &both, sizeof(bits));
  return bits;
}

// Rounds `count` floats, up to 32, to the nearest bfloat16 (ties to even), with zeros after them.
[[gnu::always_inline]] static inline __m512i round_to_bf16(const float* x, int64_t count) {
  __m512 low, high;
  if (count >= 32) {
    low = _mm512_loadu_ps(x);
    high = _mm512_loadu_ps(x + 16);
  } else {
    const uint32_t valid = (uint32_t{1} << count) - 1;
    low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(valid & 0xffff), x);
    high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(valid >> 16), x + 16);
  }
  return rounded_bf16(low, high);
}

// Packs `count` rows of `depth` floats into [steps of 32 columns][kRows][32].
template <int kRows>
void pack_rows_in_steps(const float* rows, int64_t stride, int64_t count, int64_t depth,
                        uint16_t* steps) {
  for (int64_t r = 0; r < kRows; ++r) {  // along a row, because reading takes most of the time
    uint16_t* to = steps + r * 32;
    for (int64_t k = 0; k < depth; k += 32, to += kRows * 32) {
      _mm512_storeu_si512(
          to, r < count ? round_to_bf16(rows + r * stride + k, depth - k) : _mm512_setzero_si512());
    }
  }
}

// Packs them into [steps of 32 columns][kTiles][16 pairs of columns][16 rows][2].
template <int kTiles>
void pack_pair_tiles(const float* rows, int64_t stride, int64_t count, int64_t depth,
                     uint16_t* tiles) {
  for (int64_t k = 0; k < depth; k += 32) {
    for (int64_t first = 0; first < 16 * kTiles; first += 16, tiles += 512) {
      __m512i v[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const int64_t r = first + i;
        v[i] = r < count ? round_to_bf16(rows + r * stride + k, depth - k) : _mm512_setzero_si512();
      }
      transpose_words(v);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tiles + 32 * i, v[i]);
    }
  }
}

// These convert 32 stored halves or bfloat16 numbers to a row of a tile.
struct HalfRow {
  [[gnu::always_inline]] static inline __m512i rounded(const uint8_t* at) {
    const auto* halves = reinterpret_cast<const __m256i*>(at);
    return rounded_bf16(_mm512_cvtph_ps(_mm256_loadu_si256(halves)),
                        _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1)));
  }
};
struct BfloatRow {
  [[gnu::always_inline]] static inline __m512i rounded(const uint8_t* at) {
    return _mm512_loadu_si512(at);
  }
};

// Implements Bf16Fill for rows as they are in the file; gives the same as pack_rows_in_steps().
template <class Row, int kTiles>
void fill_rows(const uint8_t* w, int64_t row_bytes, int64_t count, int64_t depth, uint16_t* panel) {
  for (int64_t r = 0; r < 16 * kTiles; ++r) {
    uint16_t* to = panel + r * 32;
    for (int64_t k = 0; k < depth; k += 32, to += kTiles * 512) {
      _mm512_storeu_si512(
          to, r < count ? Row::rounded(w + r * row_bytes + 2 * k) : _mm512_setzero_si512());
    }
  }
}

// Writes (or adds, with the bias) sums of up to 16 rows of a token.
[[gnu::always_inline]] static inline void put_sums(const Bf16Product& p, int64_t token, int64_t row,
                                                   __mmask16 valid, __m512 sums) {
  float* out = p.out + token * p.out_stride + row;
  __m512 start = p.add ? _mm512_maskz_loadu_ps(valid, out) : _mm512_setzero_ps();
  if (p.bias != nullptr) {
    start = _mm512_add_ps(start, _mm512_maskz_loadu_ps(valid, p.bias + row));
  }
  _mm512_mask_storeu_ps(out, valid, _mm512_add_ps(start, sums));
}

// Returns the rows of a product's tile from `row` on that may be written.
[[gnu::always_inline]] static inline __mmask16 valid_rows(const Bf16Product& p, int64_t row) {
  const int64_t left = p.rows - row;
  if (left <= 0) return 0;
  return static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
}

}  // namespace
}  // namespace spillway
