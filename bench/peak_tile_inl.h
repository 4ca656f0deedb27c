// SPDX-License-Identifier: Apache-2.0
// Implements the body of a peak loop: a tile of sums in registers, with operands loaded in each
// step as in a matrix product. (With constant operands some cores run at half their rate.)
// Everything here is static: each object has its own copy, compiled with its own flags.
#pragma once

#include <cstdint>

namespace spillway {
namespace {

constexpr int kTileSteps = 32;  // steps in a round; their operands fit in the first-level cache

constexpr double tile_ops(int rows, int cols, int ops_per_instruction) {
  return static_cast<double>(rows * cols * ops_per_instruction * kTileSteps);
}

// Fills with ordinary numbers, whether read as int8, f16, bf16 or f32 (denormal ones can be slow).
// Left operands change sign from step to step, so that sums stay small.
inline void fill_operands(unsigned char* out, int left_bytes, int right_bytes) {
  for (int step = 0; step < kTileSteps; ++step) {
    for (int i = 0; i < left_bytes + right_bytes; i += 2, out += 2) {
      out[0] = 0x80;
      out[1] = step % 2 == 1 && i < left_bytes ? 0xbf : 0x3f;
    }
  }
}

// `load(bytes)` returns a vector of operands, `multiply_add(sum, a, b)` is the instruction, and
// kBytes is the size of a vector.
template <int kRows, int kCols, int kBytes, class Sum, class Load, class MultiplyAdd>
inline void run_tile(int64_t rounds, Sum zero, Load load, MultiplyAdd multiply_add) {
  constexpr int kStepBytes = (kRows + kCols) * kBytes;
  alignas(64) unsigned char operands[kTileSteps * kStepBytes];
  fill_operands(operands, kRows * kBytes, kCols * kBytes);
  Sum sums[kRows][kCols];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) sums[i][j] = zero;
  }
  for (int64_t round = 0; round < rounds; ++round) {
    const unsigned char* at = operands;
    asm volatile("" : "+r"(at) : : "memory");  // the compiler must assume that the operands changed
    for (int step = 0; step < kTileSteps; ++step, at += kStepBytes) {
      decltype(load(at)) a[kRows], b[kCols];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) a[i] = load(at + i * kBytes);
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) b[j] = load(at + (kRows + j) * kBytes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < kCols; ++j) sums[i][j] = multiply_add(sums[i][j], a[i], b[j]);
      }
    }
  }
  Sum seen[kRows * kCols];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) seen[i * kCols + j] = sums[i][j];
  }
  asm volatile("" : : "r"(seen) : "memory");  // the sums must count as used
}

}  // namespace
}  // namespace spillway
