// SPDX-License-Identifier: Apache-2.0
// Measures the peak of f32 multiply-add on AVX2; 16 registers hold a tile of 3 x 3.
#include <immintrin.h>

#include "bench/peak_loop.h"
#include "bench/peak_tile_inl.h"

namespace spillway {
namespace {

void run(int64_t rounds) {
  run_tile<3, 3, 32>(
      rounds, _mm256_setzero_ps(),
      [](const unsigned char* at) {
        __m256 vector = _mm256_load_ps(reinterpret_cast<const float*>(at));
        // The vector is loaded once and not as a memory operand of each product, else loads are the
        // limit.
        asm("" : "+x"(vector));
        return vector;
      },
      [](__m256 sum, __m256 a, __m256 b) { return _mm256_fmadd_ps(a, b, sum); });
}

}  // namespace

extern const PeakLoop kAvx2Loop{"fma 256", "f32", tile_ops(3, 3, 16), run};

}  // namespace spillway
