// SPDX-License-Identifier: Apache-2.0
// Measures the peaks of the f32 multiply-add and of the 8-bit dot product of AVX-512.
#include <immintrin.h>

#include "bench/peak_loop.h"
#include "bench/peak_tile_inl.h"

namespace spillway {
namespace {

void run_fma(int64_t rounds) {
  run_tile<4, 5, 64>(
      rounds, _mm512_setzero_ps(), [](const unsigned char* at) { return _mm512_load_ps(at); },
      [](__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); });
}

void run_vnni(int64_t rounds) {
  run_tile<4, 5, 64>(
      rounds, _mm512_setzero_si512(), [](const unsigned char* at) { return _mm512_load_si512(at); },
      [](__m512i sum, __m512i a, __m512i b) { return _mm512_dpbusd_epi32(sum, a, b); });
}

}  // namespace

extern const PeakLoop kAvx512Loop{"fma 512", "f32", tile_ops(4, 5, 32), run_fma};
extern const PeakLoop kVnniLoop{"vpdpbusd 512", "int8", tile_ops(4, 5, 128), run_vnni};

}  // namespace spillway
