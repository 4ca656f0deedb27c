// SPDX-License-Identifier: Apache-2.0
// What a rendering may use up, and what it is told about its input.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string_view>

namespace spillway {

// Beyond any of them a rendering ends with Error(kInvalidArgument).
struct JinjaLimits {
  uint64_t steps = 10'000'000;         // expressions evaluated, elements gone through
  uint64_t value_bytes = 64ull << 20;  // of all values that are made, also of those no longer used
  uint64_t output_bytes = 32ull << 20;
  uint32_t nesting = 500;         // expressions and statements within each other, through macros
  uint32_t macro_depth = 100;     // macros that call each other
  uint32_t value_depth = 200;     // lists in lists, where they are printed or compared
  int64_t range_items = 100'000;  // of one range()
};

struct JinjaOptions {
  JinjaLimits limits;
  // Variables whose strings may name control tokens, such as bos_token.
  std::span<const std::string_view> trusted;
  // Members `role` of the input with exactly one of these texts count as written in the template:
  // some templates make control tokens of them, such as <|user|>.
  std::span<const std::string_view> trusted_roles;
  std::optional<std::tm> now;  // what strftime_now() tells; without it, the local time
};

}  // namespace spillway
