// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/token_stream.h"

#include <fmt/core.h>

#include "base/printable.h"

namespace spillway::jinja {
namespace {

std::string described(const Token& token) {
  switch (token.type) {
    case TokenType::kData:
      return "text";
    case TokenType::kVariableBegin:
      return "'{{'";
    case TokenType::kVariableEnd:
      return "'}}'";
    case TokenType::kBlockBegin:
      return "'{%'";
    case TokenType::kBlockEnd:
      return "'%}'";
    case TokenType::kString:
      return "a string";
    case TokenType::kInteger:
    case TokenType::kFloat:
      return "a number";
    case TokenType::kEnd:
      return "the end of the template";
    case TokenType::kName:
    case TokenType::kOperator:
      return fmt::format("'{}'", printable(token.text, 60));
  }
  return "something";
}

}  // namespace

void TokenStream::fail_unexpected(std::string_view wanted) const {
  fail_at_line(line(), fmt::format("expected {}, found {}", wanted, described(current())));
}

Token TokenStream::expect(TokenType type, std::string_view what) {
  if (!at(type)) fail_unexpected(what);
  return next();
}

void TokenStream::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail_unexpected(fmt::format("'{}'", op));
}

void TokenStream::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_unexpected(fmt::format("'{}'", name));
}

NameId NameTable::id(const std::string& name) {
  const auto [found, is_new] = ids_.try_emplace(name, static_cast<NameId>(names_.size()));
  if (is_new) names_.push_back(name);
  return found->second;
}

}  // namespace spillway::jinja
