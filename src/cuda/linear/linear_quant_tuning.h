// SPDX-License-Identifier: Apache-2.0
// Which kernel quant_linear() takes and how it is launched, and for how many tokens each one is.
#pragma once

#include <cstdint>

namespace spillway::cuda {

enum class QuantKernel : uint8_t {
  kByTokens,
  kSlices,  // any number of tokens: slices of K in clusters of blocks
  kFew,     // up to kQuantFewTokens, where it is not kSlices
  kWgmma,   // any number of tokens, on Hopper
};

// 0: chosen by shape; others are for measurements. They change no result, but for `kernel`, and for
// `stages` where rows are so long that they are multiplied in parts.
struct QuantLinearTuning {
  QuantKernel kernel = QuantKernel::kByTokens;
  int cluster = 0;        // of kSlices, blocks that share K: 1, 2, 4, 8 (from Hopper on)
  int stages = 0;         // buffers of 256 columns that a warp has in flight, at most: 1 to 4
  int blocks_per_sm = 0;  // 1, 2; of kFew to 4
  int resident = 0;       // of kFew with one token: blocks that registers have room for, 3 or 4
  int next_start = 0;  // of kFew: the next kernel may start 1: before x is there, 2: after, 3: last
  int l2_sets = -1;    // of kFew: groups that a block prefetches to L2 while it waits
  bool generic = false;  // the slow kernel that reads any layout, for comparison
  // For deterministic mode: one kernel and never more than 16 tokens at once, so that a row's
  // result does not depend on the others.
  bool same_bits = false;
};

// Tokens that one pass over the weights can serve.
inline constexpr int kQuantLinearTokens = 64;
inline constexpr int kQuantSameBitsTokens = 16;
inline constexpr int kQuantFewTokens = 4;
// Up to so many, Hopper has nothing better than kSlices.
inline constexpr int kQuantSliceTokens = 8;

}  // namespace spillway::cuda
