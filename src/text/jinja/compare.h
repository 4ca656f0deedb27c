// SPDX-License-Identifier: Apache-2.0
// Computes truth, equality and order of values as Python does.
#pragma once

#include "text/jinja/heap.h"

namespace spillway::jinja {

bool is_true(const Value& value);

// The origins of texts make no difference. Throws Error(kInvalidArgument) for values nested too
// deeply.
bool equals(Heap& heap, const Value& a, const Value& b);

// Throws Error(kInvalidArgument) for values that have no order.
bool less(Heap& heap, const Value& a, const Value& b);

// Computes `item in container`. If the container is an iterator, its items are consumed.
bool contains(Heap& heap, const Value& container, const Value& item);

}  // namespace spillway::jinja
