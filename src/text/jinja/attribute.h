// SPDX-License-Identifier: Apache-2.0
// object.name, object[key] and calls: a fixed list of methods, and nothing of how values are made.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Methods and attributes go before elements. What is not there is an undefined value, which names
// what was asked for; so are methods that would change a value, and names with an underscore in
// front. Throw Error(kInvalidArgument) for an object that is undefined.
Value get_attribute(Heap& heap, const Value& object, std::string_view name);
// Elements go before methods and attributes.
Value get_item(Heap& heap, const Value& object, const Value& key);

// Calls a method without making a value of it first; nothing when there is no such method.
[[nodiscard]] std::optional<Value> try_call_method(Heap& heap, const Value& object,
                                                   std::string_view name,
                                                   const Arguments& arguments);

// Throws Error(kInvalidArgument) for what cannot be called.
Value call_value(Heap& heap, const Value& callee, const Arguments& arguments);

using StringMethod = Value (*)(Heap& heap, const Text& self, const Arguments& arguments);
// Null when strings have no such method.
StringMethod find_string_method(std::string_view name);

}  // namespace spillway::jinja
