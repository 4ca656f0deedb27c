// SPDX-License-Identifier: Apache-2.0
// Groups of codes that share a scale.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include "cpu/attention/attention_cut_inl.h"

namespace spillway {
namespace {

// Returns the number of elements of a group, which is kKvGroup except for the last of a head.
static inline int64_t group_size(const KvPageLayout& layout, int64_t group) {
  return smaller(layout.head_dim - group * kKvGroup, kKvGroup);
}

// Loads the scales (or minima) of 16 tokens.
template <class V>
[[gnu::always_inline]] static inline void load_sixteen(const uint8_t* halves, float* out) {
#pragma GCC unroll 4
  for (int64_t j = 0; j < kPageTokens; j += V::kLanes) {
    V::store(out + j, V::load_halves(halves + 2 * j));
  }
}

// int4 codes are 0 to 15, and would multiply the rounding errors of integers by as much. So this
// mean is taken off the codes, by subtracting that many sums of the integers, and added to the
// minimum of a group instead, whose factors are exact.
constexpr int32_t kInt4Mean = 8;
// Turns the minima of 16 tokens into means.
template <class V>
[[gnu::always_inline]] static inline void add_means(const float* scales, float* mins) {
#pragma GCC unroll 2
  for (int64_t j = 0; j < kPageTokens; j += V::kLanes) {
    V::store(mins + j, V::fma(V::load(scales + j), V::set(kInt4Mean), V::load(mins + j)));
  }
}

// Multiplies modulo 2^32: NaN became an arbitrary integer.
static inline int32_t times(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}

}  // namespace
}  // namespace spillway
