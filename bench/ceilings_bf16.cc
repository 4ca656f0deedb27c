// SPDX-License-Identifier: Apache-2.0
// Measures the peaks of the bfloat16 dot product and matrix product.
#include <arm_neon.h>

#include "bench/peak_loop.h"
#include "bench/peak_tile_inl.h"

namespace spillway {
namespace {

bfloat16x8_t load(const unsigned char* at) { return vreinterpretq_bf16_u8(vld1q_u8(at)); }

void run_bfdot(int64_t rounds) {
  run_tile<4, 5, 16>(
      rounds, vdupq_n_f32(0), [](const unsigned char* at) { return load(at); },
      [](float32x4_t sum, bfloat16x8_t a, bfloat16x8_t b) { return vbfdotq_f32(sum, a, b); });
}

void run_bfmmla(int64_t rounds) {
  run_tile<4, 5, 16>(
      rounds, vdupq_n_f32(0), [](const unsigned char* at) { return load(at); },
      [](float32x4_t sum, bfloat16x8_t a, bfloat16x8_t b) { return vbfmmlaq_f32(sum, a, b); });
}

}  // namespace

extern const PeakLoop kBfdotLoop{"bfdot", "bf16", tile_ops(4, 5, 16), run_bfdot};
extern const PeakLoop kBfmmlaLoop{"bfmmla", "bf16", tile_ops(4, 5, 32), run_bfmmla};

}  // namespace spillway
