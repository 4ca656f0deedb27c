// SPDX-License-Identifier: Apache-2.0
// How one value is laid out: Python's format specifications.
#pragma once

#include <string_view>

#include "text/jinja/heap.h"

namespace spillway::jinja {

struct FormatSpec {
  std::string_view fill = " ";  // one character; part of the text it was parsed from
  char align = 0;               // < > ^ =, or 0 for what the value's type has
  char sign = '-';
  bool alternate = false;  // #
  char grouping = 0;       // , or _
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// "[[fill]align][sign][#][0][width][grouping][.precision][type]". Throws Error(kInvalidArgument).
FormatSpec parse_format_spec(std::string_view text);

// Throws Error(kInvalidArgument) for a type that the value cannot be shown as.
void append_formatted(Heap& heap, TextBuilder& out, const Value& value, const FormatSpec& spec);

// A text within its width.
void append_padded(TextBuilder& out, const Text& text, const FormatSpec& spec, char default_align);

}  // namespace spillway::jinja
