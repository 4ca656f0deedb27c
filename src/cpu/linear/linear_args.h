// SPDX-License-Identifier: Apache-2.0
// The arguments of linear's kernels, and how these split k into cuts.
#pragma once

#include <cstdint>

namespace spillway {

inline constexpr int64_t kCut = 512;                 // elements of k reduced in one pass
inline constexpr int64_t kMaxCut = kCut + kCut / 2;  // with a remainder that joins the last cut
inline constexpr int64_t kPanelRows = 16;            // rows decoded together
inline constexpr int64_t kPanelFloats = kPanelRows * kMaxCut;

// Returns where the cut that starts at k ends. It depends on `size` only, and is a multiple of 256,
// so also of any block. It is always inlined because objects compiled for one instruction set use
// it.
[[gnu::always_inline]] constexpr int64_t next_cut(int64_t k, int64_t size) {
  return size - k <= kMaxCut ? size : k + kCut;
}

struct LinearArgs {
  const uint8_t* w = nullptr;  // [n, k], stored
  int64_t row_bytes = 0;
  int64_t k = 0;
  const float* x = nullptr;  // [tokens, k], readable up to the next multiple of 16 columns
  int64_t x_stride = 0;
  int64_t tokens = 0;
  float* out = nullptr;  // [tokens, n]
  int64_t out_stride = 0;
  const float* bias = nullptr;  // [n] or none
  bool accumulate = false;
};

}  // namespace spillway
