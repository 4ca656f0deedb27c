// SPDX-License-Identifier: Apache-2.0
// Truth, equality and order of values, as Python has them.
#pragma once

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

}  // namespace spillway::jinja
