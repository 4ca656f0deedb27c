// SPDX-License-Identifier: Apache-2.0
// Converts each packed type (tensor/packed_layout.h) to operands of AVX2's byte products.
//
// Like in linear_int8_types_avx512_inl.h, the lanes of a sum are rows, here eight: the first or the
// second half of a group. Products are added up in 16 bits as long as they cannot overflow. For a
// source S and a pointer to one of its blocks:
//   kBytes, kSubs       bytes and sub-blocks of 32 columns
//   kMinima, kHalves    whether values have a minimum, whether each 16 columns have a scale
//   kOffset             whether columns() gives q plus an offset (Int8Form)
//   kMerge              how many times four columns fit 16 bits; 0: columns() gives signed bytes
//   columns(b, s, half) columns of sub-block s and a half of the rows, by four
//   scales(b, s, half)  their scales
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace spillway {
namespace {

struct Columns {
  __m256i by_four[8];  // [8 rows][4 columns]
};
struct Scales {
  __m256 scale = {};
  __m256 minimum = {};                       // if there are minima; of the first 16 columns...
  __m256 second_minimum = {};                // ...and of the others, if each 16 columns have scales
  __m256 sixteen[2] = {__m256{}, __m256{}};  // if each 16 columns have scales: integers
};

[[gnu::always_inline]] static inline __m256i load256(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
[[gnu::always_inline]] static inline __m128i load128(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
[[gnu::always_inline]] static inline __m256 halves_at(const uint8_t* p, int half) {
  return _mm256_cvtph_ps(load128(p + 16 * half));
}
[[gnu::always_inline]] static inline __m128i upper_if(__m128i bytes, int half) {
  return half == 0 ? bytes : _mm_unpackhi_epi64(bytes, bytes);
}
// Returns a vector with one value for each of its two pieces.
[[gnu::always_inline]] static inline __m256i pieces(int a, int b) {
  return _mm256_set_epi32(b, b, b, b, a, a, a, a);
}
[[gnu::always_inline]] static inline __m256i shuffle_words(__m256i a, __m256i b, bool second) {
  const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
  return _mm256_castps_si256(second ? _mm256_shuffle_ps(x, y, 0xdd)
                                    : _mm256_shuffle_ps(x, y, 0x88));
}

// Converts vectors of four row pairs, each with two pieces of eight columns, to columns 0-3, 4-7 of
// the first and of the second pieces, of all eight rows.
[[gnu::always_inline]] static inline void rows_abreast(const __m256i from[4], __m256i to[4]) {
  const __m256i first01 = shuffle_words(from[0], from[1], false);
  const __m256i first23 = shuffle_words(from[2], from[3], false);
  to[0] = _mm256_permute2x128_si256(first01, first23, 0x20);
  to[2] = _mm256_permute2x128_si256(first01, first23, 0x31);
  const __m256i second01 = shuffle_words(from[0], from[1], true);
  const __m256i second23 = shuffle_words(from[2], from[3], true);
  to[1] = _mm256_permute2x128_si256(second01, second23, 0x20);
  to[3] = _mm256_permute2x128_si256(second01, second23, 0x31);
}

// Unpacks the pieces of row pair p with kBits bits; kFlip makes them unsigned.
template <int kBits, int kFlip>
[[gnu::always_inline]] static inline void pair_at(const uint8_t* sub, int p, __m256i& low,
                                                  __m256i& high) {
  const __m256i v = load256(sub + 32 * p), mask = _mm256_set1_epi8(15);
  low = _mm256_and_si256(v, mask);
  high = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
  if constexpr (kBits == 5) {
    __m256i tops = _mm256_broadcastsi128_si256(load128(sub + 256 + p / 2 * 16));
    if (p % 2 != 0) tops = _mm256_srli_epi16(tops, 4);
    const __m256i top = _mm256_set1_epi8(0x10);
    low = _mm256_or_si256(low, _mm256_and_si256(_mm256_sllv_epi32(tops, pieces(4, 2)), top));
    high = _mm256_or_si256(high, _mm256_and_si256(_mm256_sllv_epi32(tops, pieces(3, 1)), top));
  } else if constexpr (kBits == 6) {
    const __m256i tops =
        _mm256_sllv_epi32(_mm256_broadcastsi128_si256(load128(sub + 256 + p * 16)), pieces(4, 0));
    const __m256i top = _mm256_set1_epi8(0x30);
    low = _mm256_or_si256(low, _mm256_and_si256(tops, top));
    high = _mm256_or_si256(high, _mm256_and_si256(_mm256_srli_epi16(tops, 2), top));
  }
  if constexpr (kFlip != 0) {
    low = _mm256_xor_si256(low, _mm256_set1_epi8(kFlip));
    high = _mm256_xor_si256(high, _mm256_set1_epi8(kFlip));
  }
}

template <int kBits, int kFlip>
[[gnu::always_inline]] static inline Columns columns_at(const uint8_t* sub, int half) {
  __m256i low[4], high[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) pair_at<kBits, kFlip>(sub, half * 4 + i, low[i], high[i]);
  Columns columns;
  rows_abreast(low, columns.by_four);
  rows_abreast(high, columns.by_four + 4);
  return columns;
}

// The types with blocks of 32 columns.
template <int kBits, int kFlip, bool kHasMinimum>
struct PackedSimple {
  static constexpr int kHeader = kHasMinimum ? 64 : 32;
  static constexpr int kBytes = kHeader + 256 + 64 * (kBits - 4), kSubs = 1;
  static constexpr int kMerge = kBits == 4 ? 8 : 4;
  static constexpr bool kMinima = kHasMinimum, kHalves = false, kOffset = !kHasMinimum;
  static constexpr bool kStreamed = true;
  [[gnu::always_inline]] static inline Columns columns(const uint8_t* b, int, int half) {
    return columns_at<kBits, kFlip>(b + kHeader, half);
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int, int half) {
    Scales scales{.scale = halves_at(b, half)};
    if constexpr (kMinima) scales.minimum = halves_at(b + 32, half);
    return scales;
  }
};
using PackedQ4_0 = PackedSimple<4, 0, false>;
using PackedQ4_1 = PackedSimple<4, 0, true>;
using PackedQ5_0 = PackedSimple<5, 16, false>;
using PackedQ5_1 = PackedSimple<5, 0, true>;

struct PackedG4 {
  static constexpr int kBytes = 16 * 36, kSubs = 2, kMerge = 8;
  static constexpr bool kMinima = true, kHalves = false, kOffset = false, kStreamed = true;
  [[gnu::always_inline]] static inline Columns columns(const uint8_t* b, int s, int half) {
    return columns_at<4, 0>(b + 64 + s * 256, half);
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int, int half) {
    return {.scale = halves_at(b, half), .minimum = halves_at(b + 32, half)};
  }
};

struct PackedQ8_0 {
  static constexpr int kBytes = 16 * 34, kSubs = 1, kMerge = 0;
  static constexpr bool kMinima = false, kHalves = false, kOffset = false, kStreamed = true;
  [[gnu::always_inline]] static inline Columns columns(const uint8_t* b, int, int half) {
    __m256i first[4], second[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      first[i] = load256(b + 32 + (half * 4 + i) * 64);
      second[i] = load256(b + 32 + (half * 4 + i) * 64 + 32);
    }
    Columns columns;
    rows_abreast(first, columns.by_four);
    rows_abreast(second, columns.by_four + 4);
    return columns;
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int, int half) {
    return {.scale = halves_at(b, half)};
  }
};

// Returns the six-bit numbers of sub-block s, of eight rows side by side.
[[gnu::always_inline]] static inline __m256 six_at(const uint8_t* six, int s, int half) {
  const __m128i low = _mm_srl_epi16(load128(six + s % 4 * 16), _mm_cvtsi32_si128(s / 4 * 4));
  const __m128i top = _mm_srl_epi16(load128(six + 64 + s / 4 * 16), _mm_cvtsi32_si128(s % 4 * 2));
  const __m128i all = _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)),
                                   _mm_and_si128(_mm_slli_epi16(top, 4), _mm_set1_epi8(0x30)));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(upper_if(all, half)));
}

template <int kBits>
struct PackedK45 {
  static constexpr int kSubBytes = 256 + 64 * (kBits - 4);
  static constexpr int kSubs = 8, kBytes = 64 + 192 + kSubs * kSubBytes;
  static constexpr int kMerge = kBits == 4 ? 8 : 4;
  static constexpr bool kMinima = true, kHalves = false, kOffset = false, kStreamed = true;
  [[gnu::always_inline]] static inline Columns columns(const uint8_t* b, int s, int half) {
    return columns_at<kBits, 0>(b + 256 + s * kSubBytes, half);
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int s, int half) {
    const __m256 negative = _mm256_xor_ps(halves_at(b + 32, half), _mm256_set1_ps(-0.0F));
    return {.scale = _mm256_mul_ps(halves_at(b, half), six_at(b + 64, s, half)),
            .minimum = _mm256_mul_ps(negative, six_at(b + 160, s, half))};
  }
};

// Returns the two-bit fields of a row pair: those of columns 0-15 at the bottom of each byte, those
// of 16-31 above.
[[gnu::always_inline]] static inline __m256i two_bits(const uint8_t* vector) {
  return _mm256_srlv_epi32(_mm256_broadcastsi128_si256(load128(vector)), pieces(0, 4));
}

struct PackedQ2_K {
  static constexpr int kBytes = 16 * 84, kSubs = 8, kSubBytes = 128, kMerge = 4;
  static constexpr bool kMinima = true, kHalves = true, kOffset = false, kStreamed = true;
  [[gnu::always_inline]] static inline Columns columns(const uint8_t* b, int s, int half) {
    const uint8_t* sub = b + 64 + 256 + s * kSubBytes + half * 64;
    const __m256i mask = _mm256_set1_epi8(3);
    __m256i low[4], high[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i v = two_bits(sub + 16 * i);
      low[i] = _mm256_and_si256(v, mask);
      high[i] = _mm256_and_si256(_mm256_srli_epi16(v, 2), mask);
    }
    Columns columns;
    rows_abreast(low, columns.by_four);
    rows_abreast(high, columns.by_four + 4);
    return columns;
  }
  [[gnu::always_inline]] static inline __m256 floats_of(__m128i bytes, int half) {
    const __m128i nibbles = _mm_and_si128(bytes, _mm_set1_epi8(15));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(upper_if(nibbles, half)));
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int s, int half) {
    const __m128i first = load128(b + 64 + s * 32), second = load128(b + 80 + s * 32);
    const __m256 negative = _mm256_xor_ps(halves_at(b + 32, half), _mm256_set1_ps(-0.0F));
    return {.scale = halves_at(b, half),
            .minimum = _mm256_mul_ps(negative, floats_of(_mm_srli_epi16(first, 4), half)),
            .second_minimum = _mm256_mul_ps(negative, floats_of(_mm_srli_epi16(second, 4), half)),
            .sixteen = {floats_of(first, half), floats_of(second, half)}};
  }
};

struct PackedQ3_K {
  static constexpr int kBytes = 16 * 110, kSubs = 8, kSubBytes = 128 + 64, kMerge = 4;
  static constexpr bool kMinima = false, kHalves = true, kOffset = true, kStreamed = true;
  [[gnu::always_inline]] static inline Columns columns(const uint8_t* b, int s, int half) {
    const uint8_t* sub = b + 32 + 192 + s * kSubBytes;
    const __m256i mask = _mm256_set1_epi8(3), top = _mm256_set1_epi8(4);
    __m256i low[4], high[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int p = half * 4 + i;
      const __m256i two = two_bits(sub + 16 * p);
      __m256i thirds = _mm256_broadcastsi128_si256(load128(sub + 128 + p / 2 * 16));
      if (p % 2 != 0) thirds = _mm256_srli_epi16(thirds, 4);
      thirds = _mm256_sllv_epi32(thirds, pieces(2, 0));  // those of the low columns in place
      const __m256i low_top = _mm256_andnot_si256(thirds, top);
      const __m256i high_top = _mm256_andnot_si256(_mm256_srli_epi16(thirds, 1), top);
      low[i] = _mm256_or_si256(_mm256_and_si256(two, mask), low_top);
      high[i] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(two, 2), mask), high_top);
    }
    Columns columns;
    rows_abreast(low, columns.by_four);
    rows_abreast(high, columns.by_four + 4);
    return columns;
  }
  // Returns the scale of 16 columns: number 0 to 15 in a super-block.
  [[gnu::always_inline]] static inline __m256 scale_at(const uint8_t* b, int i, int half) {
    return _mm256_sub_ps(six_at(b + 32 + i / 8 * 96, i % 8, half), _mm256_set1_ps(32));
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int s, int half) {
    return {.scale = halves_at(b, half),
            .sixteen = {scale_at(b, 2 * s, half), scale_at(b, 2 * s + 1, half)}};
  }
};

struct PackedQ6_K {
  static constexpr int kBytes = 16 * 210, kSubs = 8, kSubBytes = 256 + 128, kMerge = 2;
  static constexpr bool kMinima = false, kHalves = true, kOffset = true, kStreamed = true;
  [[gnu::always_inline]] static inline Columns columns(const uint8_t* b, int s, int half) {
    return columns_at<6, 32>(b + 32 + 256 + s * kSubBytes, half);
  }
  [[gnu::always_inline]] static inline __m256 sixteen(const uint8_t* bytes, int half) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(upper_if(load128(bytes), half)));
  }
  [[gnu::always_inline]] static inline Scales scales(const uint8_t* b, int s, int half) {
    return {.scale = halves_at(b, half),
            .sixteen = {sixteen(b + 32 + s * 32, half), sixteen(b + 48 + s * 32, half)}};
  }
};

}  // namespace
}  // namespace spillway
