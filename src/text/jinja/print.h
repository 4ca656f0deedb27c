// SPDX-License-Identifier: Apache-2.0
// Values as text: Python's str() and repr(), and JSON as transformers writes it.
#pragma once

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Strings keep their origins. Numbers, true and none alone count as written in the template, so
// that it can build <|image_1|>; lists and dicts count as input but for the strings in them.
// Throw Error(kInvalidArgument) for values nested too deeply.
void append_str(Heap& heap, TextBuilder& out, const Value& value);
void append_repr(Heap& heap, TextBuilder& out, const Value& value);
// As a text of its own; a string is returned as it is.
Value to_str(Heap& heap, const Value& value);
Text str_of(Heap& heap, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  // Both empty: Python's defaults, which differ with indent.
  Text item_separator;
  Text key_separator;
  std::optional<Text> indent;  // what one level is indented with
};
// Python's json.dumps(). Throws Error(kInvalidArgument) for what JSON does not have.
Value to_json(Heap& heap, const Value& value, const JsonStyle& style);

// &, <, >, ' and " as HTML spells them; markup is left as it is.
Text escape_html(Heap& heap, const Text& text);

}  // namespace spillway::jinja
