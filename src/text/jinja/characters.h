// SPDX-License-Identifier: Apache-2.0
// Classifies and converts single characters as Python does: case, classes, white space.
#pragma once

#include <string>
#include <string_view>

namespace spillway::jinja {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
// Equals str.isspace(), which accepts more than Unicode's White_Space.
bool is_space(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit_like(char32_t c);  // str.isdigit(): also superscripts
bool is_numeric(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);  // a titlecase letter like Dz
// Whether repr() shows the character itself.
bool is_printable(char32_t c);
// Whether str.splitlines() ends a line at this character.
bool is_line_end(char32_t c);

// Appends the character in another case, which may be several characters.
void append_upper(std::string& out, char32_t c);
void append_lower(std::string& out, char32_t c);
void append_title(std::string& out, char32_t c);

// Remove white space at both ends, at the start, and at the end.
std::string_view strip_spaces(std::string_view text);
std::string_view strip_spaces_left(std::string_view text);
std::string_view strip_spaces_right(std::string_view text);

}  // namespace spillway::jinja
