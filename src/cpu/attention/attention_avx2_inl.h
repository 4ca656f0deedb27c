// SPDX-License-Identifier: Apache-2.0
// The vectors of the x86 kernels of attention, with AVX2, FMA and F16C, and with AVX-VNNI if an
// object is compiled for it.
//
// Without dot products of bytes, codes are multiplied as integers of 16 bits: AVX2 adds up products
// of two bytes in 16 bits, which they could exceed, and queries of one byte would lose precision.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu/attention/attention_integers_x86_inl.h"

namespace spillway {
namespace {

#if defined(__AVXVNNI__)
using Avx2Integers = HighAndLow;
#else
using Avx2Integers = EvenAndOdd;
#endif

struct Avx2 : Avx2Integers {
  using Floats = __m256;
  using Ints = __m256i;
  static constexpr int64_t kLanes = 8;
  static constexpr int kMostQueries = 4;  // queries per pass of a kernel
  static constexpr int kSums = 8;         // vectors of floats that kernels keep in registers

  // ---- Floats ----

  [[gnu::always_inline]] static inline Floats set(float x) { return _mm256_set1_ps(x); }
  [[gnu::always_inline]] static inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
  [[gnu::always_inline]] static inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
  [[gnu::always_inline]] static inline void store_some(float* p, Floats x, int64_t count) {
    _mm256_maskstore_ps(p, first_lanes(count), x);
  }
  [[gnu::always_inline]] static inline Floats load_halves(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  [[gnu::always_inline]] static inline Floats load_bfloats(const void* p) {
    const Ints words = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }
  [[gnu::always_inline]] static inline Floats add(Floats a, Floats b) {
    return _mm256_add_ps(a, b);
  }
  [[gnu::always_inline]] static inline Floats sub(Floats a, Floats b) {
    return _mm256_sub_ps(a, b);
  }
  [[gnu::always_inline]] static inline Floats mul(Floats a, Floats b) {
    return _mm256_mul_ps(a, b);
  }
  // Returns a * b + c.
  [[gnu::always_inline]] static inline Floats fma(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  // Returns b in lanes where one is NaN.
  [[gnu::always_inline]] static inline Floats max(Floats a, Floats b) {
    return _mm256_max_ps(a, b);
  }
  [[gnu::always_inline]] static inline Floats magnitude(Floats x) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
  }
  // Returns x in lanes where y is not 0, else 0.
  [[gnu::always_inline]] static inline Floats where_any(Floats y, Floats x) {
    return _mm256_and_ps(x, _mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_NEQ_UQ));
  }
  // Returns y * x + c where y is not 0, c elsewhere.
  [[gnu::always_inline]] static inline Floats fma_where_any(Floats y, Floats x, Floats c) {
    return _mm256_fmadd_ps(y, where_any(y, x), c);
  }
  // Returns x in lanes `begin` to `end`, `others` elsewhere; either bound may be outside the
  // vector.
  [[gnu::always_inline]] static inline Floats lanes_of(Floats x, int64_t begin, int64_t end,
                                                       Floats others) {
    const Ints seen = _mm256_andnot_si256(first_lanes(begin), first_lanes(end));
    return _mm256_blendv_ps(others, x, _mm256_castsi256_ps(seen));
  }
  // Returns 2^x given p = 2^(x - n) and n in the low bits of `shifted`; 0 unless x > low.
  [[gnu::always_inline]] static inline Floats scale_by_power(Floats p, Floats shifted, Floats x,
                                                             Floats low) {
    const Ints bits = _mm256_add_epi32(_mm256_castps_si256(p),
                                       _mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
    return _mm256_and_ps(_mm256_castsi256_ps(bits), _mm256_cmp_ps(x, low, _CMP_GT_OQ));
  }
  [[gnu::always_inline]] static inline float largest(Floats x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  [[gnu::always_inline]] static inline float sum(Floats x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  // Returns the sums of kLanes vectors that are contiguous.
  [[gnu::always_inline]] static inline Floats sum_each(const float* rows) {
    const __m256 first = sum_four(rows), second = sum_four(rows + 4 * kLanes);
    return _mm256_add_ps(_mm256_permute2f128_ps(first, second, 0x20),
                         _mm256_permute2f128_ps(first, second, 0x31));
  }

  // ---- Integers ----

  [[gnu::always_inline]] static inline Ints set_ints(int32_t x) { return _mm256_set1_epi32(x); }
  [[gnu::always_inline]] static inline void store_ints(void* p, Ints x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), x);
  }
  [[gnu::always_inline]] static inline Ints load_ints(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  [[gnu::always_inline]] static inline Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  [[gnu::always_inline]] static inline Ints sub(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
  [[gnu::always_inline]] static inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  [[gnu::always_inline]] static inline Ints to_nearest(Floats x) { return _mm256_cvtps_epi32(x); }
  // Returns the sum modulo 2^32.
  [[gnu::always_inline]] static inline int32_t sum(Ints x) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_epi64(two, 32)));
  }
  // Packs 16 integers into 16 bits each.
  [[gnu::always_inline]] static inline __m256i pack16(const Ints* x) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(x[0], x[1]), 0xd8);
  }

  // The sums of products of four codes with four integers: of the high and low bytes of the
  // integers, or of the even and odd ones.
  struct Sums {
    Ints first, second;
  };
  struct Codes {
    Ints first, second;
  };
  // For values, signed codes are multiplied with the weights of their tokens.
  struct Weights {
    Ints first, second;
  };
  // Stores the weights of 16 tokens in the order in which values are stored: [tokens 0-7 of a
  // byte][0-7 of the next][8-15][8-15 of the next]; all first words come first, then all second
  // ones.
  [[gnu::always_inline]] static inline void store_weights(uint8_t* p, const Ints* sixteen) {
    const Ints packed = _mm256_packus_epi32(sixteen[0], sixteen[1]);  // order 0-3, 8-11, 4-7, 12-15
    const Ints split = split_weights(packed);
    store_ints(p, _mm256_permutevar8x32_epi32(split, _mm256_setr_epi32(0, 4, 0, 4, 2, 6, 2, 6)));
    store_ints(p + 32,
               _mm256_permutevar8x32_epi32(split, _mm256_setr_epi32(1, 5, 1, 5, 3, 7, 3, 7)));
  }
  [[gnu::always_inline]] static inline Weights load_weights(const uint8_t* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }

#if defined(__AVXVNNI__)
  [[gnu::always_inline]] static inline Ints total(const Sums& sums) {
    return _mm256_add_epi32(_mm256_slli_epi32(sums.first, 8), sums.second);
  }
  [[gnu::always_inline]] static inline Codes key_codes(Ints codes) { return {codes, codes}; }
  [[gnu::always_inline]] static inline Codes value_codes(Ints codes) { return {codes, codes}; }
#else
  [[gnu::always_inline]] static inline Ints total(const Sums& sums) {
    return _mm256_add_epi32(sums.first, sums.second);
  }
  [[gnu::always_inline]] static inline Codes key_codes(Ints codes) {
    return {_mm256_and_si256(codes, _mm256_set1_epi16(255)), _mm256_srli_epi16(codes, 8)};
  }
  [[gnu::always_inline]] static inline Codes value_codes(Ints codes) {
    return {_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8), _mm256_srai_epi16(codes, 8)};
  }
#endif
  // For keys, unsigned codes are multiplied with words of a query.
  [[gnu::always_inline]] static inline void add_keys(Sums& sums, const Codes& codes,
                                                     const uint8_t* q) {
    sums.first = add_products(sums.first, codes.first, broadcast_word(q));
    sums.second = add_products(sums.second, codes.second, broadcast_word(q + 4));
  }
  [[gnu::always_inline]] static inline void add_values(Sums& sums, const Codes& codes,
                                                       const Weights& weights) {
    sums.first = add_products(sums.first, weights.first, codes.first);
    sums.second = add_products(sums.second, weights.second, codes.second);
  }

  // Returns kLanes columns of the totals of four vectors of values, each of which has two columns.
  [[gnu::always_inline]] static inline Ints columns_of(const int32_t* totals) {
    const Ints x = _mm256_hadd_epi32(load_ints(totals), load_ints(totals + kLanes));
    const Ints y =
        _mm256_hadd_epi32(load_ints(totals + 2 * kLanes), load_ints(totals + 3 * kLanes));
    return _mm256_add_epi32(_mm256_permute2x128_si256(x, y, 0x20),
                            _mm256_permute2x128_si256(x, y, 0x31));
  }

  [[gnu::always_inline]] static inline Ints low_halves(Ints x) {
    return _mm256_and_si256(x, _mm256_set1_epi8(15));
  }
  [[gnu::always_inline]] static inline Ints high_halves(Ints x) {
    return low_halves(_mm256_srli_epi16(x, 4));
  }
  // Returns 16 * (high half - 8), signed.
  [[gnu::always_inline]] static inline Ints centred_halves(Ints x) {
    return _mm256_xor_si256(_mm256_and_si256(x, _mm256_set1_epi8(static_cast<char>(0xf0))),
                            _mm256_set1_epi8(static_cast<char>(0x80)));
  }
  // Returns signed bytes plus 128.
  [[gnu::always_inline]] static inline Ints to_unsigned(Ints x) {
    return _mm256_xor_si256(x, _mm256_set1_epi32(static_cast<int32_t>(0x80808080U)));
  }

  // Transposes words [0, count) of kLanes rows: put(i, x) gets word i of each row.
  template <class Put>
  [[gnu::always_inline]] static inline void turn(const uint8_t* rows, int64_t stride, int64_t count,
                                                 const Put& put) {
    const Ints mask = first_lanes(count);
    Ints x[8], y[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      x[i] = _mm256_maskload_epi32(reinterpret_cast<const int*>(rows + i * stride), mask);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      y[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
      y[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    // Here x[4 i + j] is word j of each half of rows 4 i to 4 i + 3.
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      x[i] = _mm256_unpacklo_epi64(y[i], y[i + 2]);
      x[i + 1] = _mm256_unpackhi_epi64(y[i], y[i + 2]);
      x[i + 2] = _mm256_unpacklo_epi64(y[i + 1], y[i + 3]);
      x[i + 3] = _mm256_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      y[j] = _mm256_permute2x128_si256(x[j], x[4 + j], 0x20);
      y[4 + j] = _mm256_permute2x128_si256(x[j], x[4 + j], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      if (i < count) put(i, y[i]);
    }
  }

 private:
  [[gnu::always_inline]] static inline Ints first_lanes(int64_t count) {
    const auto lanes = static_cast<int32_t>(count < 0 ? 0 : count > kLanes ? kLanes : count);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  [[gnu::always_inline]] static inline Ints broadcast_word(const uint8_t* p) {
    int32_t word;
    memcpy(&word, p, sizeof(word));
    return _mm256_set1_epi32(word);
  }
  // Returns sum + products of x and y: of bytes, x unsigned, or of 16 bits.
  [[gnu::always_inline]] static inline Ints add_products(Ints sum, Ints x, Ints y) {
#if defined(__AVXVNNI__)
    // This is assembly because the intrinsic makes g++ 12 copy every sum twice.
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(y));
    return sum;
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x, y));
#endif
  }
  // Returns the sums of four vectors for each half.
  [[gnu::always_inline]] static inline Floats sum_four(const float* rows) {
    const __m256 ab = halve(load(rows), load(rows + kLanes));
    const __m256 cd = halve(load(rows + 2 * kLanes), load(rows + 3 * kLanes));
    const __m256d x = _mm256_castps_pd(ab), y = _mm256_castps_pd(cd);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
  }
  // Returns sums of two lanes each of a, then b, alternating.
  [[gnu::always_inline]] static inline Floats halve(Floats a, Floats b) {
    return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  }
};

}  // namespace
}  // namespace spillway
