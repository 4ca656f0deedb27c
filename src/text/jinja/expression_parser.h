// SPDX-License-Identifier: Apache-2.0
// Parses the expressions of templates with Jinja's precedence.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/token_stream.h"

namespace spillway::jinja {

// Records which special names the body of a macro mentions; only those may be passed to it.
struct MacroUses {
  bool caller = false;
  bool varargs = false;
  bool kwargs = false;
};

class ExpressionParser {
 public:
  // Both must outlive the parser.
  ExpressionParser(TokenStream& stream, NameTable& names) : stream_(stream), names_(names) {}

  // All functions throw Error(kInvalidArgument).
  ExpressionPtr expression();
  // Parses one expression, or a tuple if there are commas. `end` is a name that ends it.
  ExpressionPtr tuple(bool with_condition = true, std::string_view end = {});
  // Parses expressions separated by commas, which are printed one after the other.
  ExpressionPtr printed();
  Target target(bool with_tuple, bool with_attributes, std::string_view end = {});
  // Parses one or more filters; the input of the first one is the text of a block.
  ExpressionPtr block_filter(bool begins_with_name);

  std::vector<MacroUses>& macros() { return macros_; }  // the macros being parsed, outermost first
  NameId name_id(const std::string& name) { return names_.id(name); }

 private:
  class Deeper;
  ExpressionPtr logical_or();
  ExpressionPtr logical_and();
  ExpressionPtr logical_not();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter);
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr string_literal();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr object);
  ExpressionPtr filters_and_tests(ExpressionPtr input);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr filter(ExpressionPtr input);
  ExpressionPtr test(ExpressionPtr input);
  ExpressionPtr call(ExpressionPtr callee);
  CallArguments arguments();
  bool at_tuple_end(std::string_view end) const;
  Target one_target(bool with_attributes);

  template <class Node>
  ExpressionPtr make(Node node, uint32_t line);

  TokenStream& stream_;
  NameTable& names_;
  std::vector<MacroUses> macros_;
  uint32_t nesting_ = 0;
};

}  // namespace spillway::jinja
