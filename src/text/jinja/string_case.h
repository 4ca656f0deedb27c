// SPDX-License-Identifier: Apache-2.0
// Changes the case of strings; every character keeps its origin.
#pragma once

#include "text/jinja/heap.h"

namespace spillway::jinja {

Value to_upper(Heap& heap, const Text& text);
Value to_lower(Heap& heap, const Text& text);
Value to_capitalized(Heap& heap, const Text& text);
Value to_swapped_case(Heap& heap, const Text& text);
// Computes str.title(): a letter is capitalized after every character that has no case.
Value to_title(Heap& heap, const Text& text);
// Computes the filter `title`: a letter is capitalized after white space and opening brackets only.
Value to_title_words(Heap& heap, const Text& text);

}  // namespace spillway::jinja
