// SPDX-License-Identifier: Apache-2.0
// How the kernels for few tokens go through a worker's rows. Static functions only: objects for
// different instruction sets include it.
//
// Memory is read fastest (Neoverse V1: 34 of 34 GB/s per core, against 26 for eight rows in a row)
// as four streams far apart, a whole cache line of each in turn: so one row from each quarter of
// the rows. Quarters are a power of two apart in most models, where their lines would compete for
// the same cache sets; each stream therefore starts a row later in its quarter than the one before.
#pragma once

#include <arm_neon.h>
#include <string.h>

#include "cpu/linear_half_args.h"

namespace spillway {
namespace {

constexpr int kStreams = 4;

[[gnu::always_inline]] static inline uint8x16_t load16(const uint8_t* p) { return vld1q_u8(p); }

// Four rows, one of each stream. Those past the last are the last again, and not stored.
struct StreamRows {
  int64_t row[kStreams];
  bool valid[kStreams];
};

[[gnu::always_inline]] static inline StreamRows rows_at(int64_t step, int64_t begin, int64_t end,
                                                        int64_t quarter) {
  StreamRows rows;
  for (int s = 0; s < kStreams; ++s) {
    const int64_t row = begin + s * quarter + (step + s) % quarter;
    rows.valid[s] = row < end;
    rows.row[s] = row < end ? row : end - 1;
  }
  return rows;
}

// sums[t][s]: of token t and stream s.
static inline void store_sums(const HalfProduct& a, const StreamRows& rows,
                              const float (*sums)[kStreams]) {
  for (int s = 0; s < kStreams; ++s) {
    if (!rows.valid[s]) continue;
    const int64_t row = rows.row[s];
    for (int64_t t = 0; t < a.tokens; ++t) {
      float* out = a.out + t * a.out_stride + row;
      const float old = (a.accumulate ? *out : 0) + (a.bias != nullptr ? a.bias[row] : 0);
      *out = old + sums[t][s] * a.factors[t];
    }
  }
}

// Group: tokens that share the weights in registers. It has
//   kTokens                        that finish() gives sums of,
//   kWidth                         16-bit elements of activations per column,
//   add(w0, w1, w2, w3, x)         32 columns of four rows,
//   finish(sums)                   [kTokens][kStreams].
template <class Group>
static void multiply_rows(const HalfProduct& a, int64_t begin, int64_t end) {
  const int64_t quarter = (end - begin + kStreams - 1) / kStreams;
  const int64_t whole = a.k / kHalfStep * kHalfStep, rest = a.k - whole;
  for (int64_t step = 0; step < quarter; ++step) {
    const StreamRows rows = rows_at(step, begin, end, quarter);
    const uint8_t* w0 = a.w + rows.row[0] * a.row_bytes;
    const uint8_t* w1 = a.w + rows.row[1] * a.row_bytes;
    const uint8_t* w2 = a.w + rows.row[2] * a.row_bytes;
    const uint8_t* w3 = a.w + rows.row[3] * a.row_bytes;
    const uint16_t* x = a.x;
    Group group;
    group.start();
    for (int64_t k = 0; k < whole; k += kHalfStep) {
      group.add(w0, w1, w2, w3, x);
      w0 += 2 * kHalfStep, w1 += 2 * kHalfStep, w2 += 2 * kHalfStep, w3 += 2 * kHalfStep;
      x += Group::kWidth * kHalfStep;
    }
    if (rest > 0) {  // nothing behind a row's end is read: it may be the file's
      uint8_t line[kStreams][2 * kHalfStep] = {};
      const auto bytes = static_cast<size_t>(2 * rest);
      memcpy(line[0], w0, bytes);
      memcpy(line[1], w1, bytes);
      memcpy(line[2], w2, bytes);
      memcpy(line[3], w3, bytes);
      group.add(line[0], line[1], line[2], line[3], x);
    }
    float sums[Group::kTokens][kStreams];
    group.finish(sums);
    store_sums(a, rows, sums);
  }
}

}  // namespace
}  // namespace spillway
