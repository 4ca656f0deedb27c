// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/string_case.h"

#include <string>
#include <string_view>

#include "text/jinja/characters.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

// Calls fn(std::string& out, char32_t) for each character.
template <class Fn>
Value convert(Heap& heap, const Text& text, Fn&& fn) {
  heap.charge_scan(text.size() * 8);
  TextBuilder out(heap);
  text.for_each_run([&](std::string_view run, Origin origin) {
    std::string converted;
    for (size_t at = 0; at < run.size();) {
      const Utf8Char c = decode_utf8(run, at);
      if (c.valid)
        fn(converted, c.code_point);
      else
        converted.append(run.substr(at, c.bytes));
      at += c.bytes;
    }
    out.append(converted, origin);
  });
  return out.take(text.is_markup());
}

bool begins_word_after(char32_t c) {
  return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

}  // namespace

Value to_upper(Heap& heap, const Text& text) { return convert(heap, text, append_upper); }
Value to_lower(Heap& heap, const Text& text) { return convert(heap, text, append_lower); }

Value to_capitalized(Heap& heap, const Text& text) {
  return convert(heap, text, [first = true](std::string& out, char32_t c) mutable {
    if (first)
      append_title(out, c);
    else
      append_lower(out, c);
    first = false;
  });
}

Value to_swapped_case(Heap& heap, const Text& text) {
  return convert(heap, text, [](std::string& out, char32_t c) {
    if (is_upper(c))
      append_lower(out, c);
    else
      append_upper(out, c);
  });
}

Value to_title(Heap& heap, const Text& text) {
  return convert(heap, text, [in_word = false](std::string& out, char32_t c) mutable {
    if (in_word)
      append_lower(out, c);
    else
      append_title(out, c);
    in_word = is_upper(c) || is_lower(c) || is_title(c);
  });
}

Value to_title_words(Heap& heap, const Text& text) {
  return convert(heap, text, [begins = true](std::string& out, char32_t c) mutable {
    if (begins)
      append_upper(out, c);
    else
      append_lower(out, c);
    begins = begins_word_after(c);
  });
}

}  // namespace spillway::jinja
