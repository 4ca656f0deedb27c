// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "text/jinja/expression_parser.h"

namespace spillway::jinja {
namespace {

constexpr size_t kMostTemplateBytes = 1 << 20;
constexpr uint32_t kMostBlocks = 60;  // limit for blocks within blocks

bool assigns(const Target& target, NameId name) {
  if (!target.is_tuple) return target.name == name;
  return std::any_of(target.parts.begin(), target.parts.end(),
                     [&](const Target& part) { return assigns(part, name); });
}

class Parser {
 public:
  explicit Parser(std::string_view source)
      : stream_(tokenize(source)), expressions_(stream_, names_) {}

  Tree run() {
    Tree tree;
    tree.body = body({});
    tree.names = names_.take();
    return tree;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  template <class Node>
  static std::unique_ptr<const Statement> make(Node node, uint32_t line) {
    auto statement = std::make_unique<Statement>();
    statement->node = std::move(node);
    statement->line = line;
    return statement;
  }

  bool at_any(Ends ends) const {
    return std::any_of(ends.begin(), ends.end(),
                       [&](std::string_view name) { return stream_.at_name(name); });
  }

  // Parses statements up to a block that begins with one of `ends`, whose name is then the current
  // token.
  Body body(Ends ends) {
    Body result;
    while (!stream_.at(TokenType::kEnd)) {
      const uint32_t line = stream_.line();
      if (stream_.at(TokenType::kData)) {
        result.push_back(
            make(DataStatement{std::make_unique<const TemplateText>(stream_.next().text)}, line));
      } else if (stream_.at(TokenType::kVariableBegin)) {
        stream_.next();
        ExpressionPtr value = expressions_.tuple();
        stream_.expect(TokenType::kVariableEnd, "'}}'");
        result.push_back(make(OutputStatement{std::move(value)}, line));
      } else {
        stream_.expect(TokenType::kBlockBegin, "'{%'");
        if (at_any(ends)) return result;
        result.push_back(statement());
        stream_.expect(TokenType::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0)
      fail_at_line(stream_.line(), fmt::format("the template ends before '{}'", *ends.begin()));
    return result;
  }

  // Parses the contents of a block, from the end of its first tag on.
  Body inside(Ends ends) {
    if (++blocks_ > kMostBlocks) fail_at_line(stream_.line(), "blocks are nested too deeply");
    stream_.skip_operator(":");
    stream_.expect(TokenType::kBlockEnd, "'%}'");
    Body result = body(ends);
    --blocks_;
    return result;
  }
  Body whole(std::string_view end) {
    Body result = inside({end});
    stream_.next();
    return result;
  }

  std::unique_ptr<const Statement> statement() {
    const Token tag = stream_.expect(TokenType::kName, "the name of a tag");
    const std::string& name = tag.text;
    if (name == "for") return make(for_statement(), tag.line);
    if (name == "if") return make(if_statement(), tag.line);
    if (name == "set") return set_statement(tag.line);
    if (name == "macro") return make(macro_statement(), tag.line);
    if (name == "call") return make(call_statement(), tag.line);
    if (name == "filter") {
      ExpressionPtr filter = expressions_.block_filter(true);
      return make(FilterStatement{std::move(filter), whole("endfilter")}, tag.line);
    }
    if (name == "with") return make(with_statement(), tag.line);
    if (name == "generation") return make(generation_statement(), tag.line);
    if (name == "print") return make(OutputStatement{expressions_.printed()}, tag.line);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at_line(tag.line, fmt::format("'{}' outside of a loop", name));
      if (name == "break") return make(BreakStatement{}, tag.line);
      return make(ContinueStatement{}, tag.line);
    }
    static constexpr std::string_view kRefused[] = {"import",  "from",  "include",
                                                    "extends", "block", "autoescape"};
    if (std::find(std::begin(kRefused), std::end(kRefused), name) != std::end(kRefused))
      fail_at_line(tag.line, fmt::format("'{}' is not supported in chat templates", name));
    fail_at_line(tag.line, fmt::format("unknown tag '{}'", printable(name, 60)));
  }

  ForStatement for_statement() {
    ForStatement node;
    node.target = expressions_.target(true, false, "in");
    if (assigns(node.target, expressions_.name_id("loop")))
      fail_at_line(stream_.line(), "'loop' cannot be the variable of a loop");
    stream_.expect_name("in");
    node.items = expressions_.tuple(false, "recursive");
    if (stream_.skip_name("if")) node.filter = expressions_.expression();
    node.is_recursive = stream_.skip_name("recursive");
    ++loops_;
    node.body = inside({"endfor", "else"});
    --loops_;
    if (stream_.next().text == "else") node.otherwise = whole("endfor");
    return node;
  }

  IfStatement if_statement() {
    IfStatement node;
    while (true) {
      ExpressionPtr test = expressions_.tuple(false);
      node.branches.emplace_back(std::move(test), inside({"endif", "elif", "else"}));
      const Token end = stream_.next();
      if (end.text == "elif") continue;
      if (end.text == "else") node.otherwise = whole("endif");
      return node;
    }
  }

  std::unique_ptr<const Statement> set_statement(uint32_t line) {
    Target target = expressions_.target(true, true);
    if (stream_.skip_operator("="))
      return make(SetStatement{std::move(target), expressions_.tuple()}, line);
    ExpressionPtr filter = expressions_.block_filter(false);
    return make(SetBlockStatement{std::move(target), std::move(filter), whole("endset")}, line);
  }

  // Parses parameters in parentheses; those with defaults come last.
  void read_signature(MacroStatement& macro) {
    stream_.expect_operator("(");
    while (!stream_.at_operator(")")) {
      if (!macro.parameters.empty()) stream_.expect_operator(",");
      const Token name = stream_.expect(TokenType::kName, "the name of a parameter");
      macro.parameters.emplace_back(name.text, expressions_.name_id(name.text));
      if (stream_.skip_operator("="))
        macro.defaults.push_back(expressions_.expression());
      else if (!macro.defaults.empty())
        fail_at_line(name.line, "a parameter without default follows one with a default");
    }
    stream_.expect_operator(")");
  }

  void read_macro_body(MacroStatement& macro, std::string_view end) {
    expressions_.macros().emplace_back();
    const uint32_t loops = std::exchange(loops_, 0);  // `break` cannot leave a macro
    macro.body = whole(end);
    loops_ = loops;
    const MacroUses uses = expressions_.macros().back();
    expressions_.macros().pop_back();
    macro.uses_caller = uses.caller;
    macro.uses_varargs = uses.varargs;
    macro.uses_kwargs = uses.kwargs;
  }

  MacroStatement macro_statement() {
    MacroStatement macro;
    macro.name = stream_.expect(TokenType::kName, "the name of a macro").text;
    macro.name_id = expressions_.name_id(macro.name);
    read_signature(macro);
    read_macro_body(macro, "endmacro");
    return macro;
  }

  CallStatement call_statement() {
    CallStatement node;
    node.caller.name = "caller";
    if (stream_.at_operator("(")) read_signature(node.caller);
    const uint32_t line = stream_.line();
    node.call = expressions_.expression();
    if (!std::holds_alternative<CallExpression>(node.call->node))
      fail_at_line(line, "'call' wants a call of a macro");
    read_macro_body(node.caller, "endcall");
    return node;
  }

  ScopeStatement with_statement() {
    ScopeStatement node;
    while (!stream_.at(TokenType::kBlockEnd)) {
      if (!node.assignments.empty()) stream_.expect_operator(",");
      Target target = expressions_.target(true, false);
      stream_.expect_operator("=");
      node.assignments.emplace_back(std::move(target), expressions_.expression());
    }
    node.body = whole("endwith");
    return node;
  }

  ScopeStatement generation_statement() {
    ScopeStatement node;
    const uint32_t loops = std::exchange(loops_, 0);
    node.body = whole("endgeneration");
    loops_ = loops;
    return node;
  }

  NameTable names_;
  TokenStream stream_;
  ExpressionParser expressions_;
  uint32_t blocks_ = 0;
  uint32_t loops_ = 0;
};

}  // namespace

Tree parse_template(std::string_view source) {
  SPW_CHECK(source.size() <= kMostTemplateBytes, kInvalidArgument,
            "a chat template of {} bytes; at most {}", source.size(), kMostTemplateBytes);
  return Parser(source).run();
}

}  // namespace spillway::jinja
