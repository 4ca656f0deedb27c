// SPDX-License-Identifier: Apache-2.0
// 16-bit integers as operands of products with bytes: the x86 kernels of attention multiply codes
// in this way with queries, and with probabilities times scales.
//
// Four codes are in a lane of 32 bits, and the four integers that they are multiplied with become
// two words of 32 bits. Either way the products are added exactly.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace spillway {
namespace {

constexpr float kLargestQuery = 32512;  // 127 * 256: high bytes stay in -127 to 127

// For dot products of four bytes: high bytes and low bytes, with sums of their own.
struct HighAndLow {
  static constexpr float kLargestWeight = 65535;

  // Orders 16 integers as [4][2 words].
  [[gnu::always_inline]] static inline __m256i split_weights(__m256i unsigned16) {
    return _mm256_shuffle_epi8(
        unsigned16, _mm256_setr_epi8(1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14, 1, 3, 5,
                                     7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14));
  }
  // Splits x = 256 * high + low with low from -128 to 127: the low byte of x + 128 is low + 128.
  [[gnu::always_inline]] static inline __m256i split_query(__m256i signed16) {
    return _mm256_xor_si256(split_weights(_mm256_add_epi16(signed16, _mm256_set1_epi16(128))),
                            _mm256_set1_epi64x(static_cast<int64_t>(0x8080808000000000U)));
  }
};

// For products of 16 bits: integers 0 and 2 of four, and 1 and 3.
struct EvenAndOdd {
  static constexpr float kLargestWeight = 32767;

  [[gnu::always_inline]] static inline __m256i split_weights(__m256i signed16) {
    return _mm256_shuffle_epi8(
        signed16, _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5,
                                   2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  }
  [[gnu::always_inline]] static inline __m256i split_query(__m256i signed16) {
    return split_weights(signed16);
  }
};

}  // namespace
}  // namespace spillway
