// SPDX-License-Identifier: Apache-2.0
// Declares Unicode's canonical decompositions and combining classes; nfc.cc uses them.
#pragma once

#include <array>
#include <cstdint>

namespace spillway {

struct CanonicalDecomposition {
  char32_t composed;
  char32_t first;
  char32_t second;  // 0 if the decomposition is a single character
};

struct CombiningRange {
  char32_t first;
  char32_t last;
  uint8_t combining_class;
};

// All tables are sorted by their first member. kCanonicalPairs both compose and decompose,
// kOneWayDecompositions only decompose. Hangul is in neither; it is computed.
extern const std::array<CanonicalDecomposition, 940> kCanonicalPairs;
extern const std::array<CanonicalDecomposition, 1120> kOneWayDecompositions;
extern const std::array<CombiningRange, 333> kCombiningRanges;

}  // namespace spillway
