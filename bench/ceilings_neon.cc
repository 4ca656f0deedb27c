// SPDX-License-Identifier: Apache-2.0
// Measures the peak of f32 multiply-add on NEON.
#include <arm_neon.h>

#include "bench/peak_loop.h"
#include "bench/peak_tile_inl.h"

namespace spillway {
namespace {

void run(int64_t rounds) {
  run_tile<4, 5, 16>(
      rounds, vdupq_n_f32(0),
      [](const unsigned char* at) { return vreinterpretq_f32_u8(vld1q_u8(at)); },
      [](float32x4_t sum, float32x4_t a, float32x4_t b) { return vfmaq_f32(sum, a, b); });
}

}  // namespace

extern const PeakLoop kNeonLoop{"fmla f32", "f32", tile_ops(4, 5, 8), run};

}  // namespace spillway
