// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/select_top.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace spillway::cpu {
namespace {

// Maps a float to an unsigned number of the same order, without branches, so that loops of it are
// vectorized.
uint32_t ordered(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);  // -0 becomes 0
  const uint32_t flipped =
      bits ^ (static_cast<uint32_t>(-static_cast<int32_t>(bits >> 31)) | 0x80000000U);
  return (bits & 0x7fffffffU) > 0x7f800000U ? UINT32_MAX : flipped;
}

// The k-th largest value, and how many equal to it belong to the k largest.
struct Threshold {
  uint32_t value;
  int64_t equal;
};

// Finds it from the highest digit to the lowest: how often each value of the digit occurs among the
// numbers that agree so far tells which value the k-th largest has there. Numbers that do not agree
// are dropped: the first digit, of the exponent, leaves a few of a hundred.
Threshold find_threshold(uint32_t* values, int64_t n, int64_t k) {
  constexpr int kDigitBits = 11;
  constexpr int kMostDigits = 1 << kDigitBits;
  int32_t counts[kMostDigits];
  uint32_t prefix = 0;
  for (const int shift : {21, 10, 0}) {
    const uint32_t digits = shift == 0 ? 1U << 10 : kMostDigits;
    std::memset(counts, 0, sizeof(counts));
    for (int64_t i = 0; i < n; ++i) ++counts[values[i] >> shift & (digits - 1)];
    uint32_t digit = digits - 1;
    for (; counts[digit] < k; --digit) k -= counts[digit];
    prefix |= digit << shift;
    if (shift == 0) break;
    int64_t left = 0;
    for (int64_t i = 0; i < n; ++i) {
      values[left] = values[i];
      left += values[i] >> shift == prefix >> shift ? 1 : 0;
    }
    n = left;
  }
  return {prefix, k};
}

}  // namespace

void select_top(const float* scores, int64_t n, int64_t k, int32_t* positions, uint32_t* scratch) {
  SPW_ASSERT(k >= 1 && k <= n && n <= INT32_MAX);
  for (int64_t i = 0; i < n; ++i) scratch[i] = ordered(scores[i]);
  const Threshold threshold = k < n ? find_threshold(scratch, n, k) : Threshold{0, n};
  int64_t chosen = 0, equal = 0;
  for (int64_t i = 0; chosen < k; ++i) {
    const uint32_t value = ordered(scores[i]);
    const bool is_equal = value == threshold.value;
    positions[chosen] = static_cast<int32_t>(i);
    chosen += static_cast<int64_t>(value > threshold.value) |
              (static_cast<int64_t>(is_equal) & static_cast<int64_t>(equal < threshold.equal));
    equal += is_equal ? 1 : 0;
  }
}

}  // namespace spillway::cpu
