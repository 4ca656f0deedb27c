// SPDX-License-Identifier: Apache-2.0
// Measures the peak of the bfloat16 dot product of AVX-512.
#include <immintrin.h>

#include "bench/peak_loop.h"
#include "bench/peak_tile_inl.h"

namespace spillway {
namespace {

void run(int64_t rounds) {
  run_tile<4, 5, 64>(
      rounds, _mm512_setzero_ps(), [](const unsigned char* at) { return _mm512_load_si512(at); },
      [](__m512 sum, __m512i a, __m512i b) {
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
      });
}

}  // namespace

extern const PeakLoop kAvx512Bf16Loop{"vdpbf16ps 512", "bf16", tile_ops(4, 5, 64), run};

}  // namespace spillway
