// SPDX-License-Identifier: Apache-2.0
// Declares the filters and tests of templates, found by name.
#pragma once

#include <string_view>
#include <unordered_map>

#include "text/jinja/heap.h"

namespace spillway::jinja {

using Filter = Value (*)(Heap& heap, const Value& input, const Arguments& arguments);
using Test = bool (*)(Heap& heap, const Value& input, const Arguments& arguments);

// These throw Error(kInvalidArgument) for names that do not exist and for arguments that do not
// fit.
Value apply_filter(Heap& heap, std::string_view name, const Value& input,
                   const Arguments& arguments);
bool apply_test(Heap& heap, std::string_view name, const Value& input, const Arguments& arguments);

// The tests `filter` and `test` use these.
bool filter_exists(std::string_view name);
bool test_exists(std::string_view name);

using FilterTable = std::unordered_map<std::string_view, Filter>;
const FilterTable& text_filters();
const FilterTable& value_filters();
const FilterTable& list_filters();
const FilterTable& selecting_filters();

}  // namespace spillway::jinja
