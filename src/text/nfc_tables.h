// SPDX-License-Identifier: Apache-2.0
// Unicode's canonical decompositions and combining classes, the data behind nfc.cc.
#pragma once

#include <array>
#include <cstdint>

namespace spillway {

struct CanonicalDecomposition {
  char32_t composed;
  char32_t first;
  char32_t second;  // 0 when there is only one
};

struct CombiningRange {
  char32_t first;
  char32_t last;
  uint8_t combining_class;
};

// All are sorted by their first member. Pairs work both ways; the others only decompose. Hangul is
// in neither.
extern const std::array<CanonicalDecomposition, 940> kCanonicalPairs;
extern const std::array<CanonicalDecomposition, 1120> kOneWayDecompositions;
extern const std::array<CombiningRange, 333> kCombiningRanges;

}  // namespace spillway
