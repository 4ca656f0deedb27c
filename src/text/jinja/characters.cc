// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/characters.h"

#include <algorithm>

#include "text/jinja/character_tables.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

bool in_ranges(std::span<const CharacterRange> ranges, char32_t c) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), c,
                       [](char32_t at, const CharacterRange& range) { return at < range.first; });
  return after != ranges.begin() && c <= std::prev(after)->last;
}

void append_case(std::string& out, char32_t c, const CaseTables& tables) {
  const auto text =
      std::lower_bound(tables.texts.begin(), tables.texts.end(), c,
                       [](const CaseText& entry, char32_t at) { return entry.code_point < at; });
  if (text != tables.texts.end() && text->code_point == c) {
    out.append(text->text);
    return;
  }
  // Steps of stride 2 may interleave, so the step before the nearest one can hold the character,
  // too.
  auto step = std::upper_bound(tables.steps.begin(), tables.steps.end(), c,
                               [](char32_t at, const CaseStep& entry) { return at < entry.first; });
  for (int tries = 0; tries < 2 && step != tables.steps.begin(); ++tries) {
    --step;
    if (c <= step->last && (c - step->first) % step->stride == 0) {
      append_utf8(out, static_cast<char32_t>(static_cast<int64_t>(c) + step->difference));
      return;
    }
  }
  append_utf8(out, c);
}

bool is_ascii(char32_t c) { return c < 0x80; }

}  // namespace

bool is_space(char32_t c) { return is_unicode_space(c) || (c >= 0x1C && c <= 0x1F); }
bool is_alpha(char32_t c) { return in_ranges(alpha_ranges(), c); }
bool is_decimal(char32_t c) { return in_ranges(decimal_ranges(), c); }
bool is_digit_like(char32_t c) { return in_ranges(digit_ranges(), c); }
bool is_numeric(char32_t c) { return in_ranges(numeric_ranges(), c); }
bool is_upper(char32_t c) { return in_ranges(upper_ranges(), c); }
bool is_lower(char32_t c) { return in_ranges(lower_ranges(), c); }
bool is_title(char32_t c) { return in_ranges(title_ranges(), c); }
bool is_printable(char32_t c) {
  if (is_ascii(c)) return c >= 0x20 && c < 0x7F;
  return !in_ranges(unprintable_ranges(), c);
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

void append_upper(std::string& out, char32_t c) { append_case(out, c, upper_tables()); }
void append_lower(std::string& out, char32_t c) { append_case(out, c, lower_tables()); }
void append_title(std::string& out, char32_t c) { append_case(out, c, title_tables()); }

std::string_view strip_spaces_left(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = decode_utf8(text, 0);
    if (!c.valid || !is_space(c.code_point)) break;
    text.remove_prefix(c.bytes);
  }
  return text;
}

std::string_view strip_spaces_right(std::string_view text) {
  // A UTF-8 character starts at most three bytes before its last byte.
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && text.size() - start < 4 && (text[start] & 0xC0) == 0x80) --start;
    const Utf8Char c = decode_utf8(text, start);
    if (!c.valid || start + c.bytes != text.size() || !is_space(c.code_point)) break;
    text.remove_suffix(c.bytes);
  }
  return text;
}

std::string_view strip_spaces(std::string_view text) {
  return strip_spaces_right(strip_spaces_left(text));
}

}  // namespace spillway::jinja
