// SPDX-License-Identifier: Apache-2.0
// Going through values, measuring and cutting them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/heap.h"

namespace spillway::jinja {

// What Python's iteration gives: elements, keys of a dict, characters of a string, nothing of an
// undefined value; an iterator is used up. Throws Error(kInvalidArgument) for other values.
std::vector<Value> items_of(Heap& heap, const Value& value);
bool is_iterable(const Value& value);

// Python's len(). Throws Error(kInvalidArgument) for values that have none.
int64_t length_of(Heap& heap, const Value& value);

// The element at `index`, which counts from the end when negative; nothing beyond the ends.
[[nodiscard]] std::optional<Value> try_index(Heap& heap, const Value& value, int64_t index);

// value[start:stop:step] of strings and lists. Throws Error(kInvalidArgument) for other values.
Value slice(Heap& heap, const Value& value, const Value& start, const Value& stop,
            const Value& step);

// Python's characters; an invalid byte counts as one.
size_t count_characters(std::string_view text);
// Where the character with this number starts; the end when there are fewer.
size_t character_offset(std::string_view text, size_t characters);

}  // namespace spillway::jinja
