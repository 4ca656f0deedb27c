// SPDX-License-Identifier: Apache-2.0
// Decodes and validates UTF-8 and replaces what is not valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Char {
  char32_t code_point = 0xFFFD;
  // The size of the character. For an invalid sequence, the size of its longest part that could
  // begin a character, at least 1.
  uint32_t bytes = 1;
  bool valid = false;
  bool truncated = false;  // invalid only because the text ends here
};

// Decodes the character at `position`, which must be less than text.size(). Surrogates, overlong
// forms and values above U+10FFFF are invalid.
Utf8Char decode_utf8(std::string_view text, size_t position);

// `code_point` must be at most U+10FFFF and no surrogate.
void append_utf8(std::string& text, char32_t code_point);

// Returns how many bytes at the start of `text` are valid UTF-8.
size_t valid_utf8_prefix_bytes(std::string_view text);
bool is_valid_utf8(std::string_view text);

// Returns how many bytes at the end of `text` begin a character that more bytes could complete.
size_t truncated_utf8_suffix_bytes(std::string_view text);

// Replaces every invalid sequence by one U+FFFD (Unicode's "maximal subpart" practice).
std::string replace_invalid_utf8(std::string_view text);

// Whether the character has Unicode's White_Space property.
bool is_unicode_space(char32_t code_point);

}  // namespace spillway
