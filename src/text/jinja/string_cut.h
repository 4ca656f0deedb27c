// SPDX-License-Identifier: Apache-2.0
// Splits and replaces in strings; every part keeps its origin.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/heap.h"

namespace spillway::jinja {

enum class Side : uint8_t { kBoth, kLeft, kRight };

// Removes the characters of `set` from the ends.
Text strip_characters(const Text& text, std::string_view set, Side side);
// Removes white space from the ends.
Text strip_whitespace(const Text& text, Side side);

// Compute str.split() and str.rsplit() with at most `most` splits, or all if it is negative.
// `separator` must not be empty.
std::vector<Text> split_at(const Text& text, std::string_view separator, int64_t most,
                           bool from_right);
std::vector<Text> split_at_whitespace(const Text& text, int64_t most, bool from_right);
std::vector<Text> split_lines(const Text& text, bool keep_ends);

// Computes str.replace() with at most `most` replacements, or all if it is negative.
Value replace_text(Heap& heap, const Text& text, std::string_view old, const Text& by,
                   int64_t most);
// Computes str.join() of texts.
Value join_texts(Heap& heap, const Text& separator, const std::vector<Text>& texts);

}  // namespace spillway::jinja
