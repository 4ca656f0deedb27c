// SPDX-License-Identifier: Apache-2.0
// Reads values that plans and options write as one of a few names.
#pragma once

#include <fmt/ranges.h>

#include <cstddef>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {

// Returns the value whose name is `text`, which is its index in `names`. Otherwise throws
// kInvalidArgument; the message begins with `what` and lists all names.
template <class Enum>
Enum named_value(std::span<const char* const> names, std::string_view text, std::string_view what) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return static_cast<Enum>(i);
  }
  fail(ErrorCode::kInvalidArgument, "{} is '{}'; give {} or {}", what, printable(text),
       fmt::join(names.first(names.size() - 1), ", "), names.back());
}

}  // namespace spillway
