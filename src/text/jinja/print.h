// SPDX-License-Identifier: Apache-2.0
// Converts values to text: Python's str() and repr(), and JSON as transformers writes it.
#pragma once

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Strings keep their origins. A number, true or none by itself counts as written in the template,
// so that templates can build <|image_1|>; the syntax of lists and dicts counts as input. Throw
// Error(kInvalidArgument) for values nested too deeply.
void append_str(Heap& heap, TextBuilder& out, const Value& value);
void append_repr(Heap& heap, TextBuilder& out, const Value& value);
// Return the str() of a value as a text of its own; a string is returned unchanged.
Value to_str(Heap& heap, const Value& value);
Text str_of(Heap& heap, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  // If both are empty, Python's defaults apply, which differ if `indent` is set.
  Text item_separator;
  Text key_separator;
  std::optional<Text> indent;  // the indentation of one level
};
// Computes Python's json.dumps(). Throws Error(kInvalidArgument) for values that JSON does not
// have.
Value to_json(Heap& heap, const Value& value, const JsonStyle& style);

// Escapes &, <, >, ' and " for HTML; markup is left unchanged.
Text escape_html(Heap& heap, const Text& text);

}  // namespace spillway::jinja
