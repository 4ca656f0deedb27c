// SPDX-License-Identifier: Apache-2.0
// Truth, equality and order of values, as Python has them.
#pragma once

#include <cstdint>

#include "text/jinja/heap.h"

namespace spillway::jinja {

bool is_true(const Value& value);

// Where a text came from makes no difference. Throws Error(kInvalidArgument) for values nested too
// deeply.
bool equals(Heap& heap, const Value& a, const Value& b);

// Throws Error(kInvalidArgument) for values that have no order.
bool less(Heap& heap, const Value& a, const Value& b);

// `item in container`. Goes through an iterator.
bool contains(Heap& heap, const Value& container, const Value& item);

// Throws Error(kInvalidArgument) for values that cannot be keys, such as lists.
uint64_t hash_value(const Value& value);
// For values that can be hashed.
bool same_key(const Value& a, const Value& b);

// Throws the error of using an undefined value.
[[noreturn]] void fail_undefined(const Value& value);

}  // namespace spillway::jinja
