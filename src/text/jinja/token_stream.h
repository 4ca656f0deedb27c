// SPDX-License-Identifier: Apache-2.0
// Gives the tokens of a template one at a time.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax_tree.h"

namespace spillway::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next() {
    Token token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  uint32_t line() const { return current().line; }

  bool at(TokenType type) const { return current().type == type; }
  bool at_operator(std::string_view op) const {
    return at(TokenType::kOperator) && current().text == op;
  }
  bool at_name(std::string_view name) const {
    return at(TokenType::kName) && current().text == name;
  }
  bool skip_operator(std::string_view op) { return at_operator(op) && (next(), true); }
  bool skip_name(std::string_view name) { return at_name(name) && (next(), true); }

  // These throw Error(kInvalidArgument) if another token comes.
  Token expect(TokenType type, std::string_view what);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);
  [[noreturn]] void fail_unexpected(std::string_view wanted) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

// Numbers names, so that looking up a variable compares no text.
class NameTable {
 public:
  NameId id(const std::string& name);
  std::vector<std::string> take() { return std::move(names_); }

 private:
  std::unordered_map<std::string, NameId> ids_;
  std::vector<std::string> names_;
};

}  // namespace spillway::jinja
