// SPDX-License-Identifier: Apache-2.0
// Compares Python's numbers, whatever their types.
#pragma once

#include "text/jinja/value.h"

namespace spillway::jinja {

// Returns -1, 0 or 1. Exact even for integers with more digits than a double holds.
int compare_numbers(const Value& a, const Value& b);
// Whether one of them is NaN, which equals nothing and has no order.
bool has_nan(const Value& a, const Value& b);

}  // namespace spillway::jinja
