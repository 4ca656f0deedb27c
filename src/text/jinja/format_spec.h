// SPDX-License-Identifier: Apache-2.0
// Lays out one value by Python's format specification.
#pragma once

#include <string_view>

#include "text/jinja/heap.h"

namespace spillway::jinja {

struct FormatSpec {
  std::string_view fill = " ";  // one character, a view into the parsed text
  char align = 0;               // < > ^ =, or 0 for the default of the value's type
  char sign = '-';
  bool alternate = false;  // #
  char grouping = 0;       // , or _
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// Parses "[[fill]align][sign][#][0][width][grouping][.precision][type]". Throws
// Error(kInvalidArgument) if `text` does not have this form.
FormatSpec parse_format_spec(std::string_view text);

// Throws Error(kInvalidArgument) if the value cannot be shown as this type.
void append_formatted(Heap& heap, TextBuilder& out, const Value& value, const FormatSpec& spec);

// Appends a text, padded to the width of `spec`.
void append_padded(TextBuilder& out, const Text& text, const FormatSpec& spec, char default_align);

}  // namespace spillway::jinja
