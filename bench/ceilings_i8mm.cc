// SPDX-License-Identifier: Apache-2.0
// Measures the peak of the 8-bit matrix product.
#include <arm_neon.h>

#include "bench/peak_loop.h"
#include "bench/peak_tile_inl.h"

namespace spillway {
namespace {

void run(int64_t rounds) {
  run_tile<4, 5, 16>(
      rounds, vdupq_n_s32(0),
      [](const unsigned char* at) { return vreinterpretq_s8_u8(vld1q_u8(at)); },
      [](int32x4_t sum, int8x16_t a, int8x16_t b) { return vmmlaq_s32(sum, a, b); });
}

}  // namespace

extern const PeakLoop kI8mmLoop{"smmla", "int8", tile_ops(4, 5, 64), run};

}  // namespace spillway
