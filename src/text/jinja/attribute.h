// SPDX-License-Identifier: Apache-2.0
// Resolves object.name, object[key] and calls. Only a fixed list of methods exists, so a template
// cannot reach into how values are implemented.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Looks for methods and attributes first, then for elements. A missing name gives an undefined
// value that mentions it; so do methods that would change a value, and names with a leading
// underscore. Throws Error(kInvalidArgument) if the object is undefined.
Value get_attribute(Heap& heap, const Value& object, std::string_view name);
// Looks for elements first, then for methods and attributes; otherwise like get_attribute().
Value get_item(Heap& heap, const Value& object, const Value& key);

// Calls a method without making a value of it first; returns nullopt if there is no such method.
[[nodiscard]] std::optional<Value> try_call_method(Heap& heap, const Value& object,
                                                   std::string_view name,
                                                   const Arguments& arguments);

// Throws Error(kInvalidArgument) for values that cannot be called.
Value call_value(Heap& heap, const Value& callee, const Arguments& arguments);

using StringMethod = Value (*)(Heap& heap, const Text& self, const Arguments& arguments);
// Returns nullptr if strings have no such method.
StringMethod find_string_method(std::string_view name);

}  // namespace spillway::jinja
