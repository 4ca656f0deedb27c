// SPDX-License-Identifier: Apache-2.0
// Chooses and tunes the kernels of quant_linear(), and says for how many tokens each is used.
#pragma once

#include <cstdint>

namespace spillway::cuda {

enum class QuantKernel : uint8_t {
  kByTokens,
  kSlices,  // any number of tokens: slices of K in clusters of thread blocks
  kFew,     // up to kQuantFewTokens tokens, instead of kSlices
  kWgmma,   // any number of tokens, on Hopper
};

// 0 means chosen by shape; other values are for measurements. They change no result, except for
// `kernel`, and for `stages` where rows are so long that they are multiplied in parts.
struct QuantLinearTuning {
  QuantKernel kernel = QuantKernel::kByTokens;
  int cluster = 0;        // kSlices: thread blocks that share K: 1, 2, 4, 8 (from Hopper on)
  int stages = 0;         // most buffers of 256 columns that a warp has in flight: 1 to 4
  int blocks_per_sm = 0;  // 1, 2; kFew: up to 4
  int resident = 0;       // kFew with one token: thread blocks per SM, by registers: 3 or 4
  int next_start = 0;     // kFew: the next kernel may start 1: before x is there, 2: after, 3: last
  int l2_sets = -1;       // kFew: groups that a thread block prefetches to L2 while it waits
  bool generic = false;   // the slow kernel that reads any layout, for comparison
  // For deterministic mode: uses one kernel and never more than 16 tokens at a time, so that a
  // row's result does not depend on the others.
  bool same_bits = false;
};

// The most tokens that one pass over the weights can serve.
inline constexpr int kQuantLinearTokens = 64;
inline constexpr int kQuantSameBitsTokens = 16;
inline constexpr int kQuantFewTokens = 4;
// Up to this number of tokens, no other kernel is faster than kSlices on Hopper.
inline constexpr int kQuantSliceTokens = 8;

}  // namespace spillway::cuda
