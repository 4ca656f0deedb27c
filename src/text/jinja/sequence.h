// SPDX-License-Identifier: Apache-2.0
// Iterates over values, measures and slices them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Returns what Python iterates over: elements, keys of a dict, characters of a string, nothing for
// an undefined value. An iterator is used up. Throws Error(kInvalidArgument) for other values.
std::vector<Value> items_of(Heap& heap, const Value& value);
bool is_iterable(const Value& value);

// Computes Python's len(). Throws Error(kInvalidArgument) for values that have no length.
int64_t length_of(Heap& heap, const Value& value);

// Returns the element at `index`, which counts from the end if negative, or nullopt if there is
// none.
[[nodiscard]] std::optional<Value> try_index(Heap& heap, const Value& value, int64_t index);

// Computes value[start:stop:step] of strings and lists. Throws Error(kInvalidArgument) for other
// values.
Value slice(Heap& heap, const Value& value, const Value& start, const Value& stop,
            const Value& step);

// Counts characters as Python does; an invalid byte counts as one.
size_t count_characters(std::string_view text);
// Returns the offset at which this character starts, or the end if there are fewer characters.
size_t character_offset(std::string_view text, size_t characters);

}  // namespace spillway::jinja
