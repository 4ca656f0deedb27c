// SPDX-License-Identifier: Apache-2.0
// Limits what a rendering may use, and says which parts of its input are trusted.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string_view>

namespace spillway {

// A rendering that exceeds any of these ends with Error(kInvalidArgument).
struct JinjaLimits {
  uint64_t steps = 10'000'000;         // expressions evaluated and elements visited
  uint64_t value_bytes = 64ull << 20;  // of all values made, including those no longer used
  uint64_t output_bytes = 32ull << 20;
  uint32_t nesting = 500;         // depth of expressions and statements, through macros
  uint32_t macro_depth = 100;     // depth of macros that call each other
  uint32_t value_depth = 200;     // depth of lists in lists that are printed or compared
  int64_t range_items = 100'000;  // of one range() call
};

struct JinjaOptions {
  JinjaLimits limits;
  // Variables whose strings may name control tokens, such as bos_token.
  std::span<const std::string_view> trusted;
  // A member `role` of the input whose text is exactly one of these counts as written in the
  // template, because some templates build control tokens from it, such as <|user|>.
  std::span<const std::string_view> trusted_roles;
  std::optional<std::tm> now;  // what strftime_now() formats; if not set, the local time
};

}  // namespace spillway
