// SPDX-License-Identifier: Apache-2.0
#include "cpu/select_top.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace spillway::cpu {
namespace {

// Unsigned numbers in the order of the floats.
uint32_t ordered(float score) {
  if (std::isnan(score)) return UINT32_MAX;
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);  // -0 becomes 0
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffU : 0x80000000U);
}

// The k-th largest, and how many equal to it belong to the k largest. From the highest digit to
// the lowest: how often each value of the digit occurs among the numbers that agree so far tells
// which value the k-th largest has there.
struct Threshold {
  uint32_t value;
  int64_t equal;
};
Threshold find_threshold(const float* scores, int64_t n, int64_t k) {
  constexpr int kDigitBits = 11;
  constexpr int kValues = 1 << kDigitBits;
  int32_t counts[kValues];
  uint32_t prefix = 0, known = 0;
  for (const int shift : {21, 10, 0}) {
    const uint32_t digit = shift == 0 ? (1U << 10) - 1 : kValues - 1;
    std::memset(counts, 0, sizeof(counts));
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t value = ordered(scores[i]);
      if ((value & known) == prefix) ++counts[value >> shift & digit];
    }
    uint32_t at = digit;
    for (; counts[at] < k; --at) k -= counts[at];
    prefix |= at << shift;
    known |= digit << shift;
  }
  return {prefix, k};
}

}  // namespace

void select_top(const float* scores, int64_t n, int64_t k, int32_t* positions) {
  SPW_ASSERT(k >= 1 && k <= n && n <= INT32_MAX);
  const Threshold threshold = k < n ? find_threshold(scores, n, k) : Threshold{0, n};
  int64_t chosen = 0, equal = 0;
  for (int64_t i = 0; chosen < k; ++i) {
    const uint32_t value = ordered(scores[i]);
    const bool takes =
        value > threshold.value || (value == threshold.value && equal++ < threshold.equal);
    positions[chosen] = static_cast<int32_t>(i);
    chosen += takes ? 1 : 0;
  }
}

}  // namespace spillway::cpu
