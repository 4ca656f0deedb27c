// SPDX-License-Identifier: Apache-2.0
// The order of Python's numbers, whatever their types.
#pragma once

#include "text/jinja/value.h"

namespace spillway::jinja {

// -1, 0 or 1 of two numbers. Exact also where an integer has more digits than a double.
int compare_numbers(const Value& a, const Value& b);
// Whether one of them is no number, which equals nothing and has no order.
bool has_nan(const Value& a, const Value& b);

}  // namespace spillway::jinja
