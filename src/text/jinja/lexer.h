// SPDX-License-Identifier: Apache-2.0
// Splits a template into tokens: plain text, and what is inside {{ }} and {% %}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::jinja {

enum class TokenType : uint8_t {
  kData,  // text that is printed as it is
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  uint32_t line = 0;
  std::string text;  // for strings, the value with escapes resolved
  int64_t integer = 0;
  double number = 0;
};

// Resolves comments and raw blocks, and removes white space as trim_blocks, lstrip_blocks, - and +
// demand. Throws Error(kInvalidArgument) with the line if `source` is not a valid template.
std::vector<Token> tokenize(std::string_view source);

[[noreturn]] void fail_at_line(uint32_t line, std::string_view what);

}  // namespace spillway::jinja
