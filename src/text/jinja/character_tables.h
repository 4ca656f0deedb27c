// SPDX-License-Identifier: Apache-2.0
// Declares Python's character classes and case mappings as tables in ascending order.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace spillway::jinja {

struct CharacterRange {
  uint32_t first;
  uint32_t last;
};

// Maps every `stride`-th character from first to last to the one `difference` code points further.
struct CaseStep {
  uint32_t first;
  uint32_t last;
  uint32_t stride;
  int32_t difference;
};

struct CaseText {
  uint32_t code_point;
  std::string_view text;
};

struct CaseTables {
  std::span<const CaseStep> steps;
  std::span<const CaseText> texts;
};

std::span<const CharacterRange> alpha_ranges();
std::span<const CharacterRange> decimal_ranges();
std::span<const CharacterRange> digit_ranges();
std::span<const CharacterRange> numeric_ranges();
std::span<const CharacterRange> upper_ranges();
std::span<const CharacterRange> lower_ranges();
std::span<const CharacterRange> title_ranges();
std::span<const CharacterRange> unprintable_ranges();
CaseTables upper_tables();
CaseTables lower_tables();
CaseTables title_tables();

}  // namespace spillway::jinja
