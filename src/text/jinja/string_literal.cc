// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/string_literal.h"

#include <charconv>

#include "text/utf8.h"

namespace spillway::jinja {
namespace {

void append_code_point(std::string& out, uint32_t code) {
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  append_utf8(out, surrogate ? 0xFFFD : static_cast<char32_t>(code));
}

std::optional<uint32_t> try_hex(std::string_view digits, size_t count) {
  if (digits.size() < count) return std::nullopt;
  uint32_t code = 0;
  const char* end = digits.data() + count;
  const auto read = std::from_chars(digits.data(), end, code, 16);
  if (read.ec != std::errc{} || read.ptr != end || code > 0x10FFFF) return std::nullopt;
  return code;
}

// Returns the character that the escape of one letter stands for; 0 for other letters.
char simple_escape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return c;
    default:
      return '\0';
  }
}

}  // namespace

std::optional<std::string> try_unescape(std::string_view literal) {
  std::string out;
  for (size_t at = 0; at < literal.size();) {
    if (literal[at] != '\\') {
      out.push_back(literal[at++]);
      continue;
    }
    if (at + 1 >= literal.size()) return std::nullopt;
    const char c = literal[at + 1];
    at += 2;
    if (const char simple = simple_escape(c)) {
      out.push_back(simple);
    } else if (c == '\n') {
      continue;  // the line is continued
    } else if (c >= '0' && c <= '7') {
      uint32_t code = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && at < literal.size() && literal[at] >= '0' && literal[at] <= '7'; ++i)
        code = code * 8 + static_cast<uint32_t>(literal[at++] - '0');
      append_code_point(out, code);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const auto code = try_hex(literal.substr(at), digits);
      if (!code) return std::nullopt;
      append_code_point(out, *code);
      at += digits;
    } else if (c == 'N') {
      return std::nullopt;  // characters by name are not supported
    } else {
      out.push_back('\\');
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace spillway::jinja
