// SPDX-License-Identifier: Apache-2.0
// Converts each packed type (tensor/packed_layout.h) to operands of AVX-512's byte products.
//
// The instruction adds four products of an unsigned and a signed byte to each of 16 sums. The lanes
// of a sum are rows: sixteen rows of four columns of the weights are multiplied with four columns
// of a token, broadcast. For a source S and a pointer to one of its blocks:
//   kBytes, kSubs       bytes and sub-blocks of 32 columns
//   kMinima, kHalves    whether values have a minimum, whether each 16 columns have a scale
//   kOffset             what bits() has added to q (Int8Form)
//   bits(b, s)          sub-block s, which columns_of() and put_rows() bring in order
//   scales(b, s)        the scales of the 16 rows
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace spillway {
namespace {

struct Columns {
  __m512i by_four[8];  // [16 rows][4 columns], unsigned bytes
};
// Vectors of pieces (p, h) = (2i, 0), (2i, 1), (2i + 1, 0), (2i + 1, 1), in the order of `sub`:
// columns 0-15 and 16-31, one byte each.
struct Pieces {
  __m512i low[4], high[4];
};
// Vectors of pieces (p, 0), (p, 1), (p, 2), (p, 3), in the order of `bytes`.
struct WholePieces {
  __m512i pair[8];
};
struct Scales {
  __m512 scale = {};
  __m512 minimum = {};         // if there are minima; of the first 16 columns...
  __m512 second_minimum = {};  // ...and of the others, if halves have scales
  __m512 half[2] = {{}, {}};   // if halves have scales: integers
};

[[gnu::always_inline]] static inline __m512i load512(const uint8_t* p) {
  return _mm512_loadu_si512(p);
}
[[gnu::always_inline]] static inline __m128i load128(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
[[gnu::always_inline]] static inline __m512 halves_at(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
[[gnu::always_inline]] static inline __m512 floats_of_unsigned(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
[[gnu::always_inline]] static inline __m512 floats_of_signed(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
// Returns a vector with one value for each of its four pieces.
[[gnu::always_inline]] static inline __m512i pieces(int a, int b, int c, int d) {
  return _mm512_set_epi32(d, d, d, d, c, c, c, c, b, b, b, b, a, a, a, a);
}

// The vectors a and b have rows in the order (0, 1, 2, 3) of four-byte words: two words (columns
// 0-3, 4-7) each. These return the first, and the second words of a and b.
[[gnu::always_inline]] static inline __m512i first_words(__m512i a, __m512i b) {
  return _mm512_castps_si512(
      _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88));
}
[[gnu::always_inline]] static inline __m512i second_words(__m512i a, __m512i b) {
  return _mm512_castps_si512(
      _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd));
}

// Converts pieces to columns 0-3, 4-7, 8-11, 12-15 of all rows.
[[gnu::always_inline]] static inline void rows_abreast(const __m512i from[4], __m512i to[4]) {
  const __m512i h0 = _mm512_set_epi64(13, 9, 12, 8, 5, 1, 4, 0);
  const __m512i h1 = _mm512_set_epi64(15, 11, 14, 10, 7, 3, 6, 2);
  const __m512i first01 = first_words(from[0], from[1]), first23 = first_words(from[2], from[3]);
  to[0] = _mm512_permutex2var_epi64(first01, h0, first23);
  to[2] = _mm512_permutex2var_epi64(first01, h1, first23);
  const __m512i second01 = second_words(from[0], from[1]);
  const __m512i second23 = second_words(from[2], from[3]);
  to[1] = _mm512_permutex2var_epi64(second01, h0, second23);
  to[3] = _mm512_permutex2var_epi64(second01, h1, second23);
}

// Converts two nibbles to two bytes; kFlip makes them unsigned.
template <int kFlip>
[[gnu::always_inline]] static inline Pieces nibbles(const uint8_t* sub) {
  const __m512i mask = _mm512_set1_epi8(15), flip = _mm512_set1_epi8(kFlip);
  Pieces all;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i v = load512(sub + 64 * i);
    const __m512i shifted = _mm512_srli_epi16(v, 4);
    // This is (v ^ flip) & mask.
    all.low[i] = _mm512_ternarylogic_epi32(v, flip, mask, 0x28);
    all.high[i] = _mm512_ternarylogic_epi32(shifted, flip, mask, 0x28);
  }
  return all;
}

// Joins lower bits (of a nibble) with the bits above them, which rotations bring there from `tops`.
template <int kBits, int kFlip, int kLowBits = 4>
[[gnu::always_inline]] static inline __m512i join(__m512i nibble, __m512i tops, __m512i rotation) {
  const __m512i low = _mm512_set1_epi8((1 << kLowBits) - 1);
  const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1), flip = _mm512_set1_epi8(kFlip);
  const __m512i rotated = _mm512_rolv_epi32(tops, rotation);
  // This is low ? nibble : rotated, then (it & mask) ^ flip.
  const __m512i both = _mm512_ternarylogic_epi32(low, nibble, rotated, 0xca);
  return _mm512_ternarylogic_epi32(both, mask, flip, 0x6a);
}

template <int kFlip>
[[gnu::always_inline]] static inline Pieces five_bits(const uint8_t* sub) {
  const __m512i low_rotation = pieces(4, 2, 0, 30), high_rotation = pieces(3, 1, 31, 29);
  Pieces all;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i v = load512(sub + 64 * i);
    const __m512i tops = _mm512_broadcast_i32x4(load128(sub + 256 + 16 * i));
    all.low[i] = join<5, kFlip>(v, tops, low_rotation);
    all.high[i] = join<5, kFlip>(_mm512_srli_epi16(v, 4), tops, high_rotation);
  }
  return all;
}

template <int kFlip>
[[gnu::always_inline]] static inline Pieces six_bits(const uint8_t* sub) {
  const __m512i low_rotation = pieces(4, 0, 4, 0), high_rotation = pieces(2, 30, 2, 30);
  Pieces all;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i v = load512(sub + 64 * i);
    const __m512i pair = _mm512_broadcast_i64x4(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sub + 256 + 32 * i)));
    const __m512i tops = _mm512_shuffle_i32x4(pair, pair, 0x50);  // each for both halves
    all.low[i] = join<6, kFlip>(v, tops, low_rotation);
    all.high[i] = join<6, kFlip>(_mm512_srli_epi16(v, 4), tops, high_rotation);
  }
  return all;
}

// Transposes four vectors of 16-byte lanes: gives the lanes 0 of all, then the lanes 1, 2 and 3.
[[gnu::always_inline]] static inline void transpose_lanes(const __m512i from[4], __m512i to[4],
                                                          int step) {
  const __m512i a = _mm512_shuffle_i32x4(from[0], from[1], 0x44);  // lanes 0, 1
  const __m512i b = _mm512_shuffle_i32x4(from[0], from[1], 0xee);  // lanes 2, 3
  const __m512i c = _mm512_shuffle_i32x4(from[2], from[3], 0x44);
  const __m512i d = _mm512_shuffle_i32x4(from[2], from[3], 0xee);
  to[0] = _mm512_shuffle_i32x4(a, c, 0x88);
  to[step] = _mm512_shuffle_i32x4(a, c, 0xdd);
  to[2 * step] = _mm512_shuffle_i32x4(b, d, 0x88);
  to[3 * step] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

[[gnu::always_inline]] static inline Columns columns_of(const Pieces& pieces) {
  Columns columns;
  rows_abreast(pieces.low, columns.by_four);
  rows_abreast(pieces.high, columns.by_four + 4);
  return columns;
}
[[gnu::always_inline]] static inline Columns columns_of(const WholePieces& pieces) {
  __m512i first[4], second[4];  // lane s: columns 8s to 8s + 3, and 8s + 4 to 8s + 7
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    first[i] = first_words(pieces.pair[2 * i], pieces.pair[2 * i + 1]);
    second[i] = second_words(pieces.pair[2 * i], pieces.pair[2 * i + 1]);
  }
  Columns columns;
  transpose_lanes(first, columns.by_four, 2);
  transpose_lanes(second, columns.by_four + 1, 2);
  return columns;
}

// Writes [16 rows][32 columns] of signed bytes: the result of bits() minus `offset`.
[[gnu::always_inline]] static inline void put_rows(const Pieces& pieces, int offset, int8_t* to) {
  const __m512i first = _mm512_set_epi64(11, 9, 3, 1, 10, 8, 2, 0);
  const __m512i second = _mm512_set_epi64(15, 13, 7, 5, 14, 12, 6, 4);
  const __m512i less = _mm512_set1_epi8(static_cast<char>(offset));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i low = _mm512_sub_epi8(pieces.low[i], less);
    const __m512i high = _mm512_sub_epi8(pieces.high[i], less);
    _mm512_storeu_si512(to + 128 * i, _mm512_permutex2var_epi64(low, first, high));
    _mm512_storeu_si512(to + 128 * i + 64, _mm512_permutex2var_epi64(low, second, high));
  }
}
[[gnu::always_inline]] static inline void put_rows(const WholePieces& pieces, int offset,
                                                   int8_t* to) {
  const __m512i by_row = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  const __m512i less = _mm512_set1_epi8(static_cast<char>(offset));
#pragma GCC unroll 8
  for (int p = 0; p < 8; ++p) {
    _mm512_storeu_si512(to + 64 * p,
                        _mm512_permutexvar_epi64(by_row, _mm512_sub_epi8(pieces.pair[p], less)));
  }
}

struct PackedQ4_0 {
  static constexpr int kBytes = 16 * 18, kSubs = 1;
  static constexpr bool kMinima = false, kHalves = false, kStreamed = true;
  static constexpr int kOffset = 8;
  [[gnu::always_inline]] static inline Pieces bits(const uint8_t* b, int) {
    return nibbles<0>(b + 32);
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int) {
    return {.scale = halves_at(b)};
  }
};

struct PackedQ4_1 {
  static constexpr int kBytes = 16 * 20, kSubs = 1;
  static constexpr bool kMinima = true, kHalves = false, kStreamed = true;
  static constexpr int kOffset = 0;
  [[gnu::always_inline]] static inline Pieces bits(const uint8_t* b, int) {
    return nibbles<0>(b + 64);
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int) {
    return {.scale = halves_at(b), .minimum = halves_at(b + 32)};
  }
};

struct PackedG4 {
  static constexpr int kBytes = 16 * 36, kSubs = 2;
  static constexpr bool kMinima = true, kHalves = false, kStreamed = true;
  static constexpr int kOffset = 0;
  [[gnu::always_inline]] static inline Pieces bits(const uint8_t* b, int s) {
    return nibbles<0>(b + 64 + s * 256);
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int) {
    return {.scale = halves_at(b), .minimum = halves_at(b + 32)};
  }
};

struct PackedQ5_0 {
  static constexpr int kBytes = 16 * 22, kSubs = 1;
  static constexpr bool kMinima = false, kHalves = false, kStreamed = true;
  static constexpr int kOffset = 16;
  [[gnu::always_inline]] static inline Pieces bits(const uint8_t* b, int) {
    return five_bits<16>(b + 32);
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int) {
    return {.scale = halves_at(b)};
  }
};

struct PackedQ5_1 {
  static constexpr int kBytes = 16 * 24, kSubs = 1;
  static constexpr bool kMinima = true, kHalves = false, kStreamed = true;
  static constexpr int kOffset = 0;
  [[gnu::always_inline]] static inline Pieces bits(const uint8_t* b, int) {
    return five_bits<0>(b + 64);
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int) {
    return {.scale = halves_at(b), .minimum = halves_at(b + 32)};
  }
};

struct PackedQ8_0 {
  static constexpr int kBytes = 16 * 34, kSubs = 1;
  static constexpr bool kMinima = false, kHalves = false, kStreamed = true;
  static constexpr int kOffset = 128;
  [[gnu::always_inline]] static inline WholePieces bits(const uint8_t* b, int) {
    const __m512i flip = _mm512_set1_epi8(-128);
    WholePieces pieces;
#pragma GCC unroll 8
    for (int p = 0; p < 8; ++p) {
      pieces.pair[p] = _mm512_xor_si512(load512(b + 32 + 64 * p), flip);
    }
    return pieces;
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int) {
    return {.scale = halves_at(b)};
  }
};

// Returns the six-bit numbers of sub-block s, of sixteen rows side by side.
[[gnu::always_inline]] static inline __m128i six_at(const uint8_t* six, int s) {
  const __m128i low = _mm_srl_epi16(load128(six + s % 4 * 16), _mm_cvtsi32_si128(s / 4 * 4));
  const __m128i top = _mm_srl_epi16(load128(six + 64 + s / 4 * 16), _mm_cvtsi32_si128(s % 4 * 2));
  return _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)),
                      _mm_and_si128(_mm_slli_epi16(top, 4), _mm_set1_epi8(0x30)));
}

// Returns those of sub-blocks s and s + 1, s even: their upper bits lie side by side.
[[gnu::always_inline]] static inline __m256i two_sixes_at(const uint8_t* six, int s) {
  const auto* nibbles = reinterpret_cast<const __m256i*>(six + s % 4 * 16);
  const __m256i low = _mm256_srl_epi16(_mm256_loadu_si256(nibbles), _mm_cvtsi32_si128(s / 4 * 4));
  const __m256i rotation =
      _mm256_sub_epi32(_mm256_set_epi32(2, 2, 2, 2, 4, 4, 4, 4), _mm256_set1_epi32(s % 4 * 2));
  const __m256i tops = _mm256_broadcastsi128_si256(load128(six + 64 + s / 4 * 16));
  const __m256i top = _mm256_rolv_epi32(tops, rotation);
  return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)),
                         _mm256_and_si256(top, _mm256_set1_epi8(0x30)));
}

template <int kSubBytes>
struct PackedK45 {
  static constexpr int kSubs = 8, kBytes = 64 + 192 + kSubs * kSubBytes;
  static constexpr bool kMinima = true, kHalves = false, kStreamed = true;
  static constexpr int kOffset = 0;
  [[gnu::always_inline]] static inline Pieces bits(const uint8_t* b, int s) {
    const uint8_t* sub = b + 256 + s * kSubBytes;
    if constexpr (kSubBytes == 256) {
      return nibbles<0>(sub);
    } else {
      return five_bits<0>(sub);
    }
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int s) {
    const __m512 sign = _mm512_set1_ps(-0.0F);
    return {.scale = _mm512_mul_ps(halves_at(b), floats_of_unsigned(six_at(b + 64, s))),
            .minimum = _mm512_mul_ps(_mm512_xor_ps(halves_at(b + 32), sign),
                                     floats_of_unsigned(six_at(b + 160, s)))};
  }
};
using PackedQ4_K = PackedK45<256>;
using PackedQ5_K = PackedK45<256 + 64>;

// Returns two-bit fields: those of columns 0-15 at the bottom of each byte, those of 16-31 above.
[[gnu::always_inline]] static inline __m512i two_bits(const uint8_t* two_vectors) {
  const __m512i pair =
      _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(two_vectors)));
  return _mm512_srlv_epi32(_mm512_shuffle_i32x4(pair, pair, 0x50), pieces(0, 4, 0, 4));
}

struct PackedQ2_K {
  static constexpr int kBytes = 16 * 84, kSubs = 8, kSubBytes = 128;
  static constexpr bool kMinima = true, kHalves = true, kStreamed = true;
  static constexpr int kOffset = 0;
  [[gnu::always_inline]] static inline Pieces bits(const uint8_t* b, int s) {
    const __m512i mask = _mm512_set1_epi8(3);
    Pieces all;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i v = two_bits(b + 64 + 256 + s * kSubBytes + 32 * i);
      all.low[i] = _mm512_and_si512(v, mask);
      all.high[i] = _mm512_and_si512(_mm512_srli_epi16(v, 2), mask);
    }
    return all;
  }
  [[gnu::always_inline]] static inline __m512 floats_of(__m128i bytes) {
    return floats_of_unsigned(_mm_and_si128(bytes, _mm_set1_epi8(15)));
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int s) {
    const __m128i first = load128(b + 64 + s * 32), second = load128(b + 80 + s * 32);
    const __m512 negative = _mm512_xor_ps(halves_at(b + 32), _mm512_set1_ps(-0.0F));
    return {.scale = halves_at(b),
            .minimum = _mm512_mul_ps(negative, floats_of(_mm_srli_epi16(first, 4))),
            .second_minimum = _mm512_mul_ps(negative, floats_of(_mm_srli_epi16(second, 4))),
            .half = {floats_of(first), floats_of(second)}};
  }
};

struct PackedQ3_K {
  static constexpr int kBytes = 16 * 110, kSubs = 8, kSubBytes = 128 + 64;
  static constexpr bool kMinima = false, kHalves = true, kStreamed = true;
  static constexpr int kOffset = 4;
  [[gnu::always_inline]] static inline Pieces bits(const uint8_t* b, int s) {
    const uint8_t* sub = b + 32 + 192 + s * kSubBytes;
    const __m512i low_rotation = pieces(2, 0, 30, 28), high_rotation = pieces(1, 31, 29, 27);
    Pieces all;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i two = two_bits(sub + 32 * i);
      const __m512i thirds = _mm512_broadcast_i32x4(load128(sub + 128 + 16 * i));
      all.low[i] = join<3, 4, 2>(two, thirds, low_rotation);
      all.high[i] = join<3, 4, 2>(_mm512_srli_epi16(two, 2), thirds, high_rotation);
    }
    return all;
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int s) {
    const __m256i both =
        _mm256_sub_epi8(two_sixes_at(b + 32 + s / 4 * 96, s % 4 * 2), _mm256_set1_epi8(32));
    return {.scale = halves_at(b),
            .half = {floats_of_signed(_mm256_castsi256_si128(both)),
                     floats_of_signed(_mm256_extracti128_si256(both, 1))}};
  }
};

struct PackedQ6_K {
  static constexpr int kBytes = 16 * 210, kSubs = 8, kSubBytes = 256 + 128;
  static constexpr bool kMinima = false, kHalves = true, kStreamed = true;
  static constexpr int kOffset = 32;
  [[gnu::always_inline]] static inline Pieces bits(const uint8_t* b, int s) {
    return six_bits<32>(b + 32 + 256 + s * kSubBytes);
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int s) {
    return {.scale = halves_at(b),
            .half = {floats_of_signed(load128(b + 32 + s * 32)),
                     floats_of_signed(load128(b + 32 + s * 32 + 16))}};
  }
};

}  // namespace
}  // namespace spillway
