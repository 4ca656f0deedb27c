// SPDX-License-Identifier: Apache-2.0
// Python's two ways to put values into a pattern; parts keep their origins.
#pragma once

#include "text/jinja/heap.h"

namespace spillway::jinja {

// 'pattern %s' % values. Throws Error(kInvalidArgument) for patterns and values that do not fit.
Value format_percent(Heap& heap, const Text& pattern, const Value& values);
// 'pattern {}'.format(...).
Value format_braces(Heap& heap, const Text& pattern, const Arguments& arguments);

}  // namespace spillway::jinja
