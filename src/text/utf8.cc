// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <algorithm>

namespace spillway {

Utf8Char decode_utf8(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(position);
  if (first < 0x80) return {.code_point = first, .bytes = 1, .valid = true};
  uint32_t length = 0;
  char32_t value = 0;
  // Only the second byte has narrower bounds: they exclude overlong forms, surrogates and values
  // above U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
    value = first & 0x1F;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    value = first & 0x0F;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    value = first & 0x07;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {};
  }
  for (uint32_t i = 1; i < length; ++i) {
    if (position + i >= text.size()) return {.bytes = i, .truncated = true};
    const uint8_t next = byte(position + i);
    if (next < low || next > high) return {.bytes = i};
    value = (value << 6) | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {.code_point = value, .bytes = length, .valid = true};
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

size_t valid_utf8_prefix_bytes(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const Utf8Char c = decode_utf8(text, position);
    if (!c.valid) break;
    position += c.bytes;
  }
  return position;
}

bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix_bytes(text) == text.size(); }

size_t truncated_utf8_suffix_bytes(std::string_view text) {
  const size_t longest = std::min<size_t>(3, text.size());
  for (size_t bytes = longest; bytes > 0; --bytes) {
    const Utf8Char c = decode_utf8(text, text.size() - bytes);
    if (c.truncated && c.bytes == bytes) return bytes;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix_bytes(text);
    result.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    result.append(kReplacementCharacter);
    text.remove_prefix(decode_utf8(text, 0).bytes);
  }
  return result;
}

bool is_unicode_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace spillway
