// SPDX-License-Identifier: Apache-2.0
// Measures the peaks of the multiply-adds of halves: into halves, and into floats.
#include <arm_neon.h>

#include "bench/peak_loop.h"
#include "bench/peak_tile_inl.h"

namespace spillway {
namespace {

float16x8_t load(const unsigned char* at) { return vreinterpretq_f16_u8(vld1q_u8(at)); }

void run_fmla(int64_t rounds) {
  run_tile<4, 5, 16>(
      rounds, vdupq_n_f16(0), [](const unsigned char* at) { return load(at); },
      [](float16x8_t sum, float16x8_t a, float16x8_t b) { return vfmaq_f16(sum, a, b); });
}

void run_fmlal(int64_t rounds) {
  run_tile<4, 5, 16>(
      rounds, vdupq_n_f32(0), [](const unsigned char* at) { return load(at); },
      [](float32x4_t sum, float16x8_t a, float16x8_t b) { return vfmlalq_low_f16(sum, a, b); });
}

}  // namespace

extern const PeakLoop kFp16Loop{"fmla f16", "f16", tile_ops(4, 5, 16), run_fmla};
extern const PeakLoop kFp16FmlLoop{"fmlal", "f16", tile_ops(4, 5, 8), run_fmlal};

}  // namespace spillway
