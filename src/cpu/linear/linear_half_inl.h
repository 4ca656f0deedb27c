// SPDX-License-Identifier: Apache-2.0
// Iterates over a worker's rows for the kernels for few tokens. Objects for different instruction
// sets include this file, so it has static functions only.
//
// Memory is read fastest (Neoverse V1: 34 of 34 GB/s per core, against 26 for eight successive
// rows) as four distant streams, each without a gap, taking a whole cache line of each in rotation:
// so one row comes from each quarter of the rows. Quarters are a power of two apart in most models,
// where their lines would compete for the same cache sets; so each stream is at a different place
// of its quarter.
#pragma once

#include <arm_neon.h>
#include <string.h>

#include "cpu/linear/linear_half_args.h"

namespace spillway {
namespace {

constexpr int kStreams = 4;

[[gnu::always_inline]] static inline uint8x16_t load16(const uint8_t* p) { return vld1q_u8(p); }

// The rows of one step: kRows of each stream. Rows past the last repeat the last, and are not
// stored.
template <int kRows>
struct StepRows {
  int64_t row[kStreams * kRows];
  bool valid[kStreams * kRows];
};

template <int kRows>
[[gnu::always_inline]] static inline StepRows<kRows> rows_at(int64_t step, int64_t steps,
                                                             int64_t begin, int64_t end) {
  StepRows<kRows> rows;
  for (int64_t s = 0; s < kStreams; ++s) {
    const int64_t first = begin + (s * steps + (step + s) % steps) * kRows;
    for (int64_t r = 0; r < kRows; ++r) {
      const bool valid = first + r < end;
      rows.valid[s * kRows + r] = valid;
      rows.row[s * kRows + r] = valid ? first + r : end - 1;
    }
  }
  return rows;
}

[[gnu::always_inline]] static inline void store_sum(const HalfProduct& a, int64_t t, int64_t row,
                                                    float sum) {
  float* out = a.out + t * a.out_stride + row;
  const float old = (a.accumulate ? *out : 0) + (a.bias != nullptr ? a.bias[row] : 0);
  *out = old + sum * a.factors[t];
}

// Stores sums[t][i], those of token t and row i.
template <int kRows>
static inline void store_sums(const HalfProduct& a, const StepRows<kRows>& rows,
                              const float (*sums)[kStreams * kRows]) {
  for (int i = 0; i < kStreams * kRows; ++i) {
    if (!rows.valid[i]) continue;
    for (int64_t t = 0; t < a.tokens; ++t) store_sum(a, t, rows.row[i], sums[t][i]);
  }
}

// Group is a group of tokens that share the weights in registers. It has
//   kTokens           the tokens for which finish() gives sums,
//   kRows             the rows of each stream,
//   kWidth            16-bit elements of activations per column,
//   start()           sets all sums to zero,
//   add(w, x)         adds 32 columns of kStreams * kRows rows at w[],
//   finish(sums)      gives [kTokens][kStreams * kRows].
template <class Group>
static void multiply_rows(const HalfProduct& a, int64_t begin, int64_t end) {
  constexpr int kRows = Group::kRows, kAll = kStreams * kRows;
  const int64_t steps = (end - begin + kAll - 1) / kAll;
  const auto rest = static_cast<size_t>(2 * (a.k % kHalfStep));  // in bytes
  for (int64_t step = 0; step < steps; ++step) {
    const StepRows<kRows> rows = rows_at<kRows>(step, steps, begin, end);
    const uint8_t* w[kAll];
#pragma GCC unroll 8
    for (int i = 0; i < kAll; ++i) w[i] = a.w + rows.row[i] * a.row_bytes;
    const uint16_t* x = a.x;
    Group group;
    group.start();
    for (int64_t i = a.k / kHalfStep; i > 0; --i) {
      group.add(w, x);
#pragma GCC unroll 8
      for (int j = 0; j < kAll; ++j) w[j] += 2 * kHalfStep;
      x += Group::kWidth * kHalfStep;
    }
    if (rest > 0) {  // nothing after a row's end is read: it may be the end of the file
      uint8_t lines[kAll][2 * kHalfStep] = {};
#pragma GCC unroll 8
      for (int i = 0; i < kAll; ++i) {
        memcpy(lines[i], w[i], rest);
        w[i] = lines[i];
      }
      group.add(w, x);
    }
    float sums[Group::kTokens][kAll];
    group.finish(sums);
    store_sums<kRows>(a, rows, sums);
  }
}

// Like multiply_rows(), with each stream a quarter of a row later than the one before, so that
// every part of the activations is used again before weights push it out of the nearest cache. Sums
// are those of quarters of a row, added in ascending order. Group needs kTokens, kWidth, start()
// and
//   add_line(s, w, x)       adds 32 columns of stream s,
//   take(s, totals)         adds stream s's sums to totals[kTokens] and sets them to zero.
constexpr int64_t kQuarters = 4;
constexpr int64_t kQuartersBytes = 20 << 10;  // of packed activations, at most

// Returns whether multiplying by quarters pays. If only a part of the activations survives in a
// cache of 64 KB, that costs up to a sixth of the speed of memory; larger ones stream through it
// like the weights.
template <class Group>
[[maybe_unused, gnu::always_inline]] static inline bool fits_quarters(int64_t k) {
  return k % (kQuarters * kHalfStep) == 0 && k * Group::kWidth * 2 <= kQuartersBytes;
}

template <class Group>
[[maybe_unused]] static void multiply_quarters(const HalfProduct& a, int64_t begin, int64_t end) {
  const int64_t steps = (end - begin + kStreams - 1) / kStreams, phases = kQuarters * steps;
  const int64_t lines = a.k / kHalfStep / kQuarters;
  float32x4_t totals[kStreams][Group::kTokens] = {};
  Group group;
  group.start();
  for (int64_t phase = 0; phase < phases + kStreams - 1; ++phase) {
    const uint8_t* w[kStreams];
    const uint16_t* x[kStreams];
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      // Before its first and after its last quarter a stream computes something that is discarded.
      const int64_t now = phase < s ? 0 : phase - s >= phases ? phases - 1 : phase - s;
      const int64_t row = begin + s * steps + now / kQuarters;
      w[s] =
          a.w + (row < end ? row : end - 1) * a.row_bytes + now % kQuarters * lines * 2 * kHalfStep;
      x[s] = a.x + now % kQuarters * lines * kHalfStep * Group::kWidth;
      if (now % kQuarters == 0) {
        for (int t = 0; t < Group::kTokens; ++t) totals[s][t] = vdupq_n_f32(0);
      }
    }
    for (int64_t i = lines; i > 0; --i) {
#pragma GCC unroll 4
      for (int s = 0; s < kStreams; ++s) {
        group.add_line(s, w[s], x[s]);
        w[s] += 2 * kHalfStep;
        x[s] += Group::kWidth * kHalfStep;
      }
    }
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      group.take(s, totals[s]);
      const int64_t now = phase - s, row = begin + s * steps + now / kQuarters;
      if (now < 0 || now % kQuarters != kQuarters - 1 || now >= phases || row >= end) continue;
      for (int64_t t = 0; t < a.tokens; ++t) store_sum(a, t, row, vaddvq_f32(totals[s][t]));
    }
  }
}

}  // namespace
}  // namespace spillway
