// SPDX-License-Identifier: Apache-2.0
// Converts scores to probabilities, with any set of vectors `V`.
//
// The file has static functions only, because each object that includes it is compiled for other
// instructions.
#pragma once

#include "cpu/attention/attention_cut_inl.h"
#include "cpu/attention/attention_exp2.h"

namespace spillway {
namespace {

// Returns 2^x for x <= 0; 0 below -126 and for NaN. x = i + r with |r| <= 1/2, and a polynomial for
// 2^r whose relative error is below 3e-7.
template <class V>
[[gnu::always_inline]] static inline typename V::Floats exp2_of(typename V::Floats x) {
  // Adding 3 * 2^22 rounds to an integer and leaves it in the low bits.
  const auto low = V::set(-126), shift = V::set(12582912);
  const auto clamped = V::max(x, low);
  const auto shifted = V::add(clamped, shift);
  const auto r = V::sub(clamped, V::sub(shifted, shift));
  auto p = V::set(kExp2Factors[0]);
#pragma GCC unroll 6
  for (int k = 1; k < 7; ++k) p = V::fma(p, r, V::set(kExp2Factors[k]));
  return V::scale_by_power(p, shifted, x, low);
}

// Replaces the scores [256] of a query, to which `seen` is visible, by e^(scale * score - maximum):
// all those of the cut's pages, 0 where a key is masked.
template <class V>
static inline void softmax(const Cut& cut, const Keys& seen, float scale, float* scores,
                           float* maximum, float* sum) {
  constexpr int64_t n = V::kLanes;
  const int64_t from = cut.key_of(cut.first_page), to = cut.key_of(cut.end_page);
  *maximum = kNoScore;
  *sum = 0;
  if (seen.begin >= seen.end) {
    memset(scores + from, 0, static_cast<size_t>(to - from) * sizeof(float));
    return;
  }
  const auto none = V::set(kNoScore), factor = V::set(scale * 1.44269504F);  // for powers of two
  auto top = none, check = V::set(0);  // 0 times what is not finite is NaN
  for (int64_t i = from; i < to; i += n) {
    auto s = V::mul(V::load(scores + i), factor);
    if (i < seen.begin || i + n > seen.end) s = V::lanes_of(s, seen.begin - i, seen.end - i, none);
    V::store(scores + i, s);
    top = V::max(s, top);
    check = V::fma(s, V::set(0), check);
  }
  const float largest = V::largest(top);
  auto even = check, odd = V::set(0);
  for (int64_t i = from; i < to; i += kPageTokens) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kPageTokens; j += n) {
      const auto p = exp2_of<V>(V::sub(V::load(scores + i + j), V::set(largest)));
      V::store(scores + i + j, p);
      (j == 0 ? even : odd) = V::add(j == 0 ? even : odd, p);
    }
  }
  *maximum = largest * 0.693147181F;
  *sum = V::sum(V::add(even, odd));
}

}  // namespace
}  // namespace spillway
