// SPDX-License-Identifier: Apache-2.0
// The vectors of the x86 kernels of attention, with AVX-512 and its dot products of bytes.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/attention/attention_integers_x86_inl.h"

namespace spillway {
namespace {

struct Avx512 : HighAndLow {
  using Floats = __m512;
  using Ints = __m512i;
  static constexpr int64_t kLanes = 16;
  static constexpr int kMostQueries = 8;  // queries per pass of a kernel
  static constexpr int kSums = 16;        // vectors of floats that kernels keep in registers

  // ---- Floats ----

  [[gnu::always_inline]] static inline Floats set(float x) { return _mm512_set1_ps(x); }
  [[gnu::always_inline]] static inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
  [[gnu::always_inline]] static inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  [[gnu::always_inline]] static inline void store_some(float* p, Floats x, int64_t count) {
    _mm512_mask_storeu_ps(p, first_lanes(count), x);
  }
  [[gnu::always_inline]] static inline Floats load_halves(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  [[gnu::always_inline]] static inline Floats load_bfloats(const void* p) {
    const Ints words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }
  [[gnu::always_inline]] static inline Floats add(Floats a, Floats b) {
    return _mm512_add_ps(a, b);
  }
  [[gnu::always_inline]] static inline Floats sub(Floats a, Floats b) {
    return _mm512_sub_ps(a, b);
  }
  [[gnu::always_inline]] static inline Floats mul(Floats a, Floats b) {
    return _mm512_mul_ps(a, b);
  }
  // Returns a * b + c.
  [[gnu::always_inline]] static inline Floats fma(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  // Returns b in lanes where one is NaN.
  [[gnu::always_inline]] static inline Floats max(Floats a, Floats b) {
    return _mm512_max_ps(a, b);
  }
  [[gnu::always_inline]] static inline Floats magnitude(Floats x) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
  }
  // Returns x in lanes where y is not 0, else 0.
  [[gnu::always_inline]] static inline Floats where_any(Floats y, Floats x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NEQ_UQ), x);
  }
  // Returns y * x + c where y is not 0, c elsewhere.
  [[gnu::always_inline]] static inline Floats fma_where_any(Floats y, Floats x, Floats c) {
    return _mm512_mask3_fmadd_ps(y, x, c, _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NEQ_UQ));
  }
  // Returns x in lanes `begin` to `end`, `others` elsewhere; either bound may be outside the
  // vector.
  [[gnu::always_inline]] static inline Floats lanes_of(Floats x, int64_t begin, int64_t end,
                                                       Floats others) {
    const auto seen = static_cast<__mmask16>(first_lanes(end) & ~first_lanes(begin));
    return _mm512_mask_mov_ps(others, seen, x);
  }
  // Returns 2^x given p = 2^(x - n) and n in the low bits of `shifted`; 0 unless x > low.
  [[gnu::always_inline]] static inline Floats scale_by_power(Floats p, Floats shifted, Floats x,
                                                             Floats low) {
    const Ints bits = _mm512_add_epi32(_mm512_castps_si512(p),
                                       _mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_GT_OQ), _mm512_castsi512_ps(bits));
  }
  [[gnu::always_inline]] static inline float largest(Floats x) {
    const __m512 half = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    const __m512 quarter = _mm512_max_ps(half, _mm512_shuffle_f32x4(half, half, 0xb1));
    const __m128 four = _mm512_castps512_ps128(quarter);
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  [[gnu::always_inline]] static inline float sum(Floats x) {
    const __m512 half = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    const __m512 quarter = _mm512_add_ps(half, _mm512_shuffle_f32x4(half, half, 0xb1));
    const __m128 four = _mm512_castps512_ps128(quarter);
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  // Returns the sums of kLanes vectors that are contiguous.
  [[gnu::always_inline]] static inline Floats sum_each(const float* rows) {
    __m512 four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i, rows += 4 * kLanes) {
      const __m512 ab = halve(load(rows), load(rows + kLanes));
      const __m512 cd = halve(load(rows + 2 * kLanes), load(rows + 3 * kLanes));
      const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
      four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                              _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    return add_quarters(add_quarters(four[0], four[1]), add_quarters(four[2], four[3]));
  }

  // ---- Integers ----

  [[gnu::always_inline]] static inline Ints set_ints(int32_t x) { return _mm512_set1_epi32(x); }
  [[gnu::always_inline]] static inline void store_ints(void* p, Ints x) {
    _mm512_storeu_si512(p, x);
  }
  [[gnu::always_inline]] static inline Ints load_ints(const void* p) {
    return _mm512_loadu_si512(p);
  }
  [[gnu::always_inline]] static inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  [[gnu::always_inline]] static inline Ints sub(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
  [[gnu::always_inline]] static inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  [[gnu::always_inline]] static inline Ints to_nearest(Floats x) { return _mm512_cvtps_epi32(x); }
  // Returns the sum modulo 2^32.
  [[gnu::always_inline]] static inline int32_t sum(Ints x) {
    const Ints half = _mm512_add_epi32(x, _mm512_shuffle_i32x4(x, x, 0x4e));
    const Ints quarter = _mm512_add_epi32(half, _mm512_shuffle_i32x4(half, half, 0xb1));
    const __m128i four = _mm512_castsi512_si128(quarter);
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_epi64(two, 32)));
  }
  // Packs 16 integers into 16 bits each.
  [[gnu::always_inline]] static inline __m256i pack16(const Ints* x) {
    return _mm512_cvtepi32_epi16(x[0]);
  }

  // The sums of products of four codes with four integers: of their high and of their low bytes.
  struct Sums {
    Ints first, second;
  };
  [[gnu::always_inline]] static inline Ints total(const Sums& sums) {
    return _mm512_add_epi32(_mm512_slli_epi32(sums.first, 8), sums.second);
  }

  // For keys, unsigned codes of one byte are multiplied with a word of a query.
  struct Codes {
    Ints both;
  };
  [[gnu::always_inline]] static inline Codes key_codes(Ints codes) { return {codes}; }
  [[gnu::always_inline]] static inline void add_keys(Sums& sums, const Codes& codes,
                                                     const uint8_t* q) {
    sums.first = add_word_products(sums.first, codes.both, q);
    sums.second = add_word_products(sums.second, codes.both, q + 4);
  }

  // For values, signed codes are multiplied with the weights of their tokens.
  struct Weights {
    Ints first, second;
  };
  // Stores the weights of 16 tokens in the order in which values are stored: [tokens 0-7 of a
  // byte][0-7 of the next][8-15][8-15 of the next]; all high bytes come first, then all low ones.
  [[gnu::always_inline]] static inline void store_weights(uint8_t* p, const Ints* sixteen) {
    const Ints bytes = _mm512_shuffle_epi8(
        sixteen[0],
        _mm512_broadcast_i32x4(_mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12)));
    const Ints order = _mm512_setr_epi32(0, 4, 0, 4, 8, 12, 8, 12, 1, 5, 1, 5, 9, 13, 9, 13);
    _mm512_store_si512(p, _mm512_permutexvar_epi32(order, bytes));
  }
  [[gnu::always_inline]] static inline Weights load_weights(const uint8_t* p) {
    return {_mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(p))),
            _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32)))};
  }
  [[gnu::always_inline]] static inline Codes value_codes(Ints codes) { return {codes}; }
  [[gnu::always_inline]] static inline void add_values(Sums& sums, const Codes& codes,
                                                       const Weights& weights) {
    sums.first = add_products(sums.first, weights.first, codes.both);
    sums.second = add_products(sums.second, weights.second, codes.both);
  }
  // Returns kLanes columns of the totals of four vectors of values, each of which has four columns.
  [[gnu::always_inline]] static inline Ints columns_of(const int32_t* totals) {
    const __m512 x = to_pairs(load_ints(totals), load_ints(totals + kLanes));
    const __m512 y = to_pairs(load_ints(totals + 2 * kLanes), load_ints(totals + 3 * kLanes));
    const Ints sums = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_f32x4(x, y, 0x88)),
                                       _mm512_castps_si512(_mm512_shuffle_f32x4(x, y, 0xdd)));
    return _mm512_permutex_epi64(sums, 0xd8);
  }

  [[gnu::always_inline]] static inline Ints low_halves(Ints x) {
    return _mm512_and_si512(x, _mm512_set1_epi8(15));
  }
  [[gnu::always_inline]] static inline Ints high_halves(Ints x) {
    return low_halves(_mm512_srli_epi16(x, 4));
  }
  // Returns 16 * (high half - 8), signed: (x & 0xf0) ^ 0x80.
  [[gnu::always_inline]] static inline Ints centred_halves(Ints x) {
    return _mm512_ternarylogic_epi32(x, _mm512_set1_epi8(static_cast<char>(0xf0)),
                                     _mm512_set1_epi8(static_cast<char>(0x80)), 0x6a);
  }
  // Returns signed bytes plus 128.
  [[gnu::always_inline]] static inline Ints to_unsigned(Ints x) {
    return _mm512_xor_si512(x, _mm512_set1_epi32(static_cast<int32_t>(0x80808080U)));
  }

  // Transposes words [0, count) of kLanes rows: put(i, x) gets word i of each row.
  template <class Put>
  [[gnu::always_inline]] static inline void turn(const uint8_t* rows, int64_t stride, int64_t count,
                                                 const Put& put) {
    const __mmask16 mask = first_lanes(count);
    Ints x[16], y[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = _mm512_maskz_loadu_epi32(mask, rows + i * stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
      y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    // Here x[4 i + j] is word j of each quarter of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
      x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
      x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
      x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Ints even_a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x88);
      const Ints odd_a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xdd);
      const Ints even_b = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x88);
      const Ints odd_b = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xdd);
      y[j] = _mm512_shuffle_i32x4(even_a, even_b, 0x88);
      y[4 + j] = _mm512_shuffle_i32x4(odd_a, odd_b, 0x88);
      y[8 + j] = _mm512_shuffle_i32x4(even_a, even_b, 0xdd);
      y[12 + j] = _mm512_shuffle_i32x4(odd_a, odd_b, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i < count) put(i, y[i]);
    }
  }

 private:
  [[gnu::always_inline]] static inline __mmask16 first_lanes(int64_t count) {
    return static_cast<__mmask16>(count <= 0 ? 0 : count >= 16 ? 0xffff : (1 << count) - 1);
  }
  // Returns sum + products of unsigned x and signed y. It is assembly because the intrinsic makes
  // g++ 12 copy every sum twice.
  [[gnu::always_inline]] static inline Ints add_products(Ints sum, Ints x, Ints y) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
    return sum;
  }
  // Does the same with one word for all lanes, which the instruction broadcasts by itself.
  [[gnu::always_inline]] static inline Ints add_word_products(Ints sum, Ints x, const uint8_t* y) {
    const auto& word = *reinterpret_cast<const uint8_t(*)[4]>(y);
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(x), "m"(word));
    return sum;
  }
  // Returns sums of two lanes each of a, then b, alternating.
  [[gnu::always_inline]] static inline Floats halve(Floats a, Floats b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
  // Returns quarters 0 + 1 and 2 + 3 of a, then of b.
  [[gnu::always_inline]] static inline Floats add_quarters(Floats a, Floats b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  // Returns for each quarter the sums of neighbours of a, then of b.
  [[gnu::always_inline]] static inline Floats to_pairs(Ints a, Ints b) {
    const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                         _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd))));
  }
};

}  // namespace
}  // namespace spillway
