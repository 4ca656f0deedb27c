// SPDX-License-Identifier: Apache-2.0
// The file is compiled for AVX2, so it contains nothing else.
#include <immintrin.h>

#include "cpu/linear/quantize_block.h"

namespace spillway {

QuantizedBlock quantize_block_avx2(const float* x, int8_t* q) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256 v[4];
  __m256i top = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    // Magnitudes are ordered like their bits, with NaN above all, so that NaN is kept; a float
    // maximum would drop it.
    top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
  }
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  const float peak = _mm_cvtss_f32(_mm_castsi128_ps(half));

  if (!(peak >= kLeastPeak && peak <= 0x1.fffffep127F)) {  // zero, infinity or NaN
    const __m128i zero = _mm_setzero_si128();
    for (int i = 0; i < 4; ++i) _mm_storel_epi64(reinterpret_cast<__m128i*>(q + 16 * i), zero);
    return {peak < kLeastPeak ? 0 : peak / 127, {0, 0}};
  }
  const __m256 inverse = _mm256_set1_ps(127 / peak);
  __m256i words[2];  // of 16 columns
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i], inverse));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i + 1], inverse));
    words[i] = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
  }
  // The order is columns 0-7, 16-23 and 8-15, 24-31.
  const __m256i bytes = _mm256_packs_epi16(words[0], words[1]);
  const __m128 even = _mm_castsi128_ps(_mm256_castsi256_si128(bytes));
  const __m128 odd = _mm_castsi128_ps(_mm256_extracti128_si256(bytes, 1));
  _mm_storel_pi(reinterpret_cast<__m64*>(q), even);
  _mm_storel_pi(reinterpret_cast<__m64*>(q + 16), odd);
  _mm_storeh_pi(reinterpret_cast<__m64*>(q + 32), even);
  _mm_storeh_pi(reinterpret_cast<__m64*>(q + 48), odd);

  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i sums =
      _mm256_hadd_epi32(_mm256_madd_epi16(words[0], ones), _mm256_madd_epi16(words[1], ones));
  const __m128i quads =
      _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  const __m128i both = _mm_hadd_epi32(quads, quads);
  return {peak / 127, {_mm_cvtsi128_si32(both), _mm_extract_epi32(both, 1)}};
}

}  // namespace spillway
