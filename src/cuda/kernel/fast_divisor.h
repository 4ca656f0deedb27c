// SPDX-License-Identifier: Apache-2.0
// Divides by a number that the host knows, in three instructions instead of two dozen.
#pragma once

#include <cstdint>

namespace spillway::cuda {

// Divides dividends below 2^31 (after Granlund and Montgomery, "Division by invariant integers
// using multiplication", section 4).
struct FastDivisor {
  uint32_t divisor = 1, multiplier = 0, shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(int d) : divisor(static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier =
        static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor) +
        1;
  }

  // Returns the quotient and sets `rest` to the remainder. Kernels can call it too (relaxed
  // constexpr).
  constexpr unsigned divide(unsigned x, unsigned& rest) const {
    const unsigned quotient = (static_cast<unsigned>(uint64_t{x} * multiplier >> 32) + x) >> shift;
    rest = x - quotient * divisor;
    return quotient;
  }
};

}  // namespace spillway::cuda
