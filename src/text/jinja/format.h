// SPDX-License-Identifier: Apache-2.0
// Implements Python's two ways to format values with a pattern; each part keeps its origin.
#pragma once

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Computes 'pattern %s' % values. Throws Error(kInvalidArgument) if pattern and values do not fit.
Value format_percent(Heap& heap, const Text& pattern, const Value& values);
// Computes 'pattern {}'.format(...).
Value format_braces(Heap& heap, const Text& pattern, const Arguments& arguments);

}  // namespace spillway::jinja
