// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/expression_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "text/jinja/expression_depth.h"

namespace spillway::jinja {
namespace {

constexpr uint32_t kMostDepth = 200;    // limit for the depth of an expression tree
constexpr uint32_t kMostNesting = 150;  // limit for the parser's recursion

std::optional<CompareOperator> compare_operator(const TokenStream& stream) {
  static constexpr std::pair<std::string_view, CompareOperator> kOperators[] = {
      {"==", CompareOperator::kEqual},  {"!=", CompareOperator::kNotEqual},
      {"<", CompareOperator::kLess},    {"<=", CompareOperator::kLessEqual},
      {">", CompareOperator::kGreater}, {">=", CompareOperator::kGreaterEqual},
  };
  for (const auto& [text, op] : kOperators)
    if (stream.at_operator(text)) return op;
  if (stream.at_name("in")) return CompareOperator::kIn;
  if (stream.at_name("not") && stream.ahead().type == TokenType::kName &&
      stream.ahead().text == "in")
    return CompareOperator::kNotIn;
  return std::nullopt;
}

}  // namespace

class ExpressionParser::Deeper {
 public:
  explicit Deeper(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.nesting_ > kMostNesting)
      fail_at_line(parser_.stream_.line(), "an expression is nested too deeply");
  }
  ~Deeper() { --parser_.nesting_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  ExpressionParser& parser_;
};

template <class Node>
ExpressionPtr ExpressionParser::make(Node node, uint32_t line) {
  auto made = std::make_unique<Expression>();
  made->node = std::move(node);
  made->line = line;
  made->depth = 1 + depth_inside(*made);
  if (made->depth > kMostDepth) fail_at_line(line, "an expression is nested too deeply");
  return made;
}

ExpressionPtr ExpressionParser::expression() {
  const Deeper deeper(*this);
  uint32_t line = stream_.line();
  ExpressionPtr result = logical_or();
  while (stream_.skip_name("if")) {
    ExpressionPtr test = logical_or();
    ExpressionPtr otherwise;
    if (stream_.skip_name("else")) otherwise = expression();
    result =
        make(ConditionalExpression{std::move(test), std::move(result), std::move(otherwise)}, line);
    line = stream_.line();
  }
  return result;
}

ExpressionPtr ExpressionParser::logical_or() {
  const uint32_t line = stream_.line();
  ExpressionPtr left = logical_and();
  while (stream_.skip_name("or")) {
    ExpressionPtr right = logical_and();
    left = make(LogicExpression{false, std::move(left), std::move(right)}, line);
  }
  return left;
}

ExpressionPtr ExpressionParser::logical_and() {
  const uint32_t line = stream_.line();
  ExpressionPtr left = logical_not();
  while (stream_.skip_name("and")) {
    ExpressionPtr right = logical_not();
    left = make(LogicExpression{true, std::move(left), std::move(right)}, line);
  }
  return left;
}

ExpressionPtr ExpressionParser::logical_not() {
  if (!stream_.at_name("not")) return comparison();
  const Deeper deeper(*this);
  const uint32_t line = stream_.next().line;
  return make(UnaryExpression{UnaryOperator::kNot, logical_not()}, line);
}

ExpressionPtr ExpressionParser::comparison() {
  const uint32_t line = stream_.line();
  CompareExpression compare;
  compare.first = sum();
  while (const auto op = compare_operator(stream_)) {
    stream_.next();
    if (*op == CompareOperator::kNotIn) stream_.next();
    compare.rest.emplace_back(*op, sum());
  }
  if (compare.rest.empty()) return std::move(compare.first);
  return make(std::move(compare), line);
}

ExpressionPtr ExpressionParser::sum() {
  const uint32_t line = stream_.line();
  ExpressionPtr left = concatenation();
  while (stream_.at_operator("+") || stream_.at_operator("-")) {
    const BinaryOperator op =
        stream_.next().text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
    ExpressionPtr right = concatenation();
    left = make(BinaryExpression{op, std::move(left), std::move(right)}, line);
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  const uint32_t line = stream_.line();
  ConcatExpression concat;
  concat.parts.push_back(product());
  while (stream_.skip_operator("~")) concat.parts.push_back(product());
  if (concat.parts.size() == 1) return std::move(concat.parts[0]);
  return make(std::move(concat), line);
}

ExpressionPtr ExpressionParser::product() {
  static constexpr std::pair<std::string_view, BinaryOperator> kOperators[] = {
      {"*", BinaryOperator::kMultiply},
      {"/", BinaryOperator::kDivide},
      {"//", BinaryOperator::kFloorDivide},
      {"%", BinaryOperator::kModulo}};
  const uint32_t line = stream_.line();
  ExpressionPtr left = power();
  while (true) {
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& op) { return stream_.at_operator(op.first); });
    if (found == std::end(kOperators)) return left;
    stream_.next();
    ExpressionPtr right = power();
    left = make(BinaryExpression{found->second, std::move(left), std::move(right)}, line);
  }
}

// `**` groups to the left here, unlike in Python.
ExpressionPtr ExpressionParser::power() {
  const uint32_t line = stream_.line();
  ExpressionPtr left = unary(true);
  while (stream_.skip_operator("**")) {
    ExpressionPtr right = unary(true);
    left = make(BinaryExpression{BinaryOperator::kPower, std::move(left), std::move(right)}, line);
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  const Deeper deeper(*this);
  const uint32_t line = stream_.line();
  ExpressionPtr node;
  if (stream_.skip_operator("-"))
    node = make(UnaryExpression{UnaryOperator::kMinus, unary(false)}, line);
  else if (stream_.skip_operator("+"))
    node = make(UnaryExpression{UnaryOperator::kPlus, unary(false)}, line);
  else
    node = primary();
  node = postfix(std::move(node));
  return with_filter ? filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::name_or_constant() {
  const Token token = stream_.next();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return make(Literal{Value(true)}, token.line);
  if (name == "false" || name == "False") return make(Literal{Value(false)}, token.line);
  if (name == "none" || name == "None") return make(Literal{Value()}, token.line);
  for (MacroUses& uses : macros_) {
    uses.caller = uses.caller || name == "caller";
    uses.varargs = uses.varargs || name == "varargs";
    uses.kwargs = uses.kwargs || name == "kwargs";
  }
  return make(NameExpression{names_.id(name)}, token.line);
}

ExpressionPtr ExpressionParser::string_literal() {
  const uint32_t line = stream_.line();
  std::string text;
  while (stream_.at(TokenType::kString)) text += stream_.next().text;
  return make(StringLiteral{std::make_unique<const TemplateText>(std::move(text))}, line);
}

ExpressionPtr ExpressionParser::primary() {
  const uint32_t line = stream_.line();
  switch (stream_.current().type) {
    case TokenType::kName:
      return name_or_constant();
    case TokenType::kString:
      return string_literal();
    case TokenType::kInteger:
      return make(Literal{Value(stream_.next().integer)}, line);
    case TokenType::kFloat:
      return make(Literal{Value(stream_.next().number)}, line);
    default:
      break;
  }
  if (stream_.skip_operator("(")) {
    if (stream_.skip_operator(")")) return make(ListExpression{{}, true}, line);
    ExpressionPtr inside = tuple();
    stream_.expect_operator(")");
    return inside;
  }
  if (stream_.at_operator("[")) return list();
  if (stream_.at_operator("{")) return dict();
  stream_.fail_unexpected("an expression");
}

bool ExpressionParser::at_tuple_end(std::string_view end) const {
  return stream_.at(TokenType::kVariableEnd) || stream_.at(TokenType::kBlockEnd) ||
         stream_.at_operator(")") || (!end.empty() && stream_.at_name(end));
}

ExpressionPtr ExpressionParser::tuple(bool with_condition, std::string_view end) {
  const uint32_t line = stream_.line();
  ListExpression items;
  items.is_tuple = true;
  bool has_comma = false;
  while (!at_tuple_end(end)) {
    items.items.push_back(with_condition ? expression() : logical_or());
    if (!stream_.skip_operator(",")) break;
    has_comma = true;
  }
  if (items.items.empty()) stream_.fail_unexpected("an expression");
  if (!has_comma) return std::move(items.items[0]);
  return make(std::move(items), line);
}

ExpressionPtr ExpressionParser::printed() {
  const uint32_t line = stream_.line();
  ConcatExpression parts;
  do {
    parts.parts.push_back(expression());
  } while (stream_.skip_operator(","));
  return make(std::move(parts), line);
}

ExpressionPtr ExpressionParser::list() {
  const uint32_t line = stream_.next().line;
  ListExpression items;
  while (!stream_.at_operator("]")) {
    if (!items.items.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("]")) break;
    items.items.push_back(expression());
  }
  stream_.expect_operator("]");
  return make(std::move(items), line);
}

ExpressionPtr ExpressionParser::dict() {
  const uint32_t line = stream_.next().line;
  DictExpression items;
  while (!stream_.at_operator("}")) {
    if (!items.items.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("}")) break;
    ExpressionPtr key = expression();
    stream_.expect_operator(":");
    items.items.emplace_back(std::move(key), expression());
  }
  stream_.expect_operator("}");
  return make(std::move(items), line);
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr object) {
  while (true) {
    if (stream_.at_operator(".") || stream_.at_operator("["))
      object = subscript(std::move(object));
    else if (stream_.at_operator("("))
      object = call(std::move(object));
    else
      return object;
  }
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr input) {
  while (true) {
    if (stream_.skip_operator("|"))
      input = filter(std::move(input));
    else if (stream_.at_name("is"))
      input = test(std::move(input));
    else if (stream_.at_operator("("))
      input = call(std::move(input));
    else
      return input;
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr object) {
  const Token open = stream_.next();
  if (open.text == ".") {
    const Token name = stream_.next();
    if (name.type == TokenType::kName)
      return make(AttributeExpression{std::move(object), name.text}, open.line);
    if (name.type != TokenType::kInteger)
      fail_at_line(name.line, "expected a name or a number after '.'");
    return make(ItemExpression{std::move(object), make(Literal{Value(name.integer)}, name.line)},
                open.line);
  }
  ExpressionPtr parts[3];
  size_t colons = 0;
  ListExpression keys;  // used for several keys
  keys.is_tuple = true;
  while (!stream_.at_operator("]")) {
    if (stream_.skip_operator(":")) {
      if (++colons > 2) fail_at_line(open.line, "a slice has more than three parts");
    } else if (colons == 0 && parts[0] && stream_.skip_operator(",")) {
      keys.items.push_back(std::move(parts[0]));
      if (stream_.at_operator("]")) stream_.fail_unexpected("a key");
    } else if (parts[colons]) {
      stream_.fail_unexpected("']'");
    } else {
      parts[colons] = expression();
    }
  }
  stream_.expect_operator("]");
  if (colons > 0) {
    if (!keys.items.empty()) fail_at_line(open.line, "a slice is one of several keys");
    return make(SliceExpression{std::move(object), std::move(parts[0]), std::move(parts[1]),
                                std::move(parts[2])},
                open.line);
  }
  if (!keys.items.empty() || !parts[0]) {
    if (parts[0]) keys.items.push_back(std::move(parts[0]));
    parts[0] = make(std::move(keys), open.line);
  }
  return make(ItemExpression{std::move(object), std::move(parts[0])}, open.line);
}

CallArguments ExpressionParser::arguments() {
  const uint32_t line = stream_.line();
  stream_.expect_operator("(");
  CallArguments arguments;
  const auto check = [&](bool fits) {
    if (!fits) fail_at_line(line, "the arguments of a call are in the wrong order");
  };
  while (!stream_.at_operator(")")) {
    if (stream_.skip_operator("*")) {
      check(!arguments.more_positional && !arguments.more_named);
      arguments.more_positional = expression();
    } else if (stream_.skip_operator("**")) {
      check(!arguments.more_named);
      arguments.more_named = expression();
    } else if (stream_.at(TokenType::kName) && stream_.ahead().type == TokenType::kOperator &&
               stream_.ahead().text == "=") {
      check(!arguments.more_named);
      std::string name = stream_.next().text;
      stream_.next();
      arguments.named.emplace_back(std::move(name), expression());
    } else {
      check(!arguments.more_positional && !arguments.more_named && arguments.named.empty());
      arguments.positional.push_back(expression());
    }
    if (!stream_.at_operator(")")) stream_.expect_operator(",");
  }
  stream_.expect_operator(")");
  return arguments;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr callee) {
  const uint32_t line = stream_.line();
  CallArguments given = arguments();
  return make(CallExpression{std::move(callee), std::move(given)}, line);
}

// Parses a filter; the '|' has been read.
ExpressionPtr ExpressionParser::filter(ExpressionPtr input) {
  const Token first = stream_.expect(TokenType::kName, "the name of a filter");
  FilterExpression node{std::move(input), first.text, {}};
  while (stream_.skip_operator("."))
    node.name.append(1, '.').append(stream_.expect(TokenType::kName, "the name of a filter").text);
  if (stream_.at_operator("(")) node.arguments = arguments();
  return make(std::move(node), first.line);
}

ExpressionPtr ExpressionParser::block_filter(bool begins_with_name) {
  ExpressionPtr result;
  while (begins_with_name || stream_.skip_operator("|")) {
    result = filter(std::move(result));
    begins_with_name = false;
  }
  return result;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr input) {
  const uint32_t line = stream_.next().line;
  const bool negated = stream_.skip_name("not");
  TestExpression node{
      std::move(input), stream_.expect(TokenType::kName, "the name of a test").text, {}};
  while (stream_.skip_operator("."))
    node.name.append(1, '.').append(stream_.expect(TokenType::kName, "the name of a test").text);
  const bool literal = stream_.at(TokenType::kString) || stream_.at(TokenType::kInteger) ||
                       stream_.at(TokenType::kFloat) || stream_.at_operator("[") ||
                       stream_.at_operator("{");
  const bool name = stream_.at(TokenType::kName) && !stream_.at_name("else") &&
                    !stream_.at_name("or") && !stream_.at_name("and");
  if (stream_.at_operator("(")) {
    node.arguments = arguments();
  } else if (literal || name) {
    if (stream_.at_name("is")) fail_at_line(line, "tests cannot be chained with 'is'");
    node.arguments.positional.push_back(postfix(primary()));
  }
  ExpressionPtr result = make(std::move(node), line);
  if (!negated) return result;
  return make(UnaryExpression{UnaryOperator::kNot, std::move(result)}, line);
}

Target ExpressionParser::one_target(bool with_attributes) {
  const Deeper deeper(*this);
  if (stream_.skip_operator("(")) {
    Target inside = target(true, with_attributes);
    stream_.expect_operator(")");
    return inside;
  }
  const Token name = stream_.expect(TokenType::kName, "a name to assign to");
  static constexpr std::string_view kReserved[] = {"true", "false", "none",
                                                   "True", "False", "None"};
  if (std::find(std::begin(kReserved), std::end(kReserved), name.text) != std::end(kReserved))
    fail_at_line(name.line, fmt::format("'{}' cannot be assigned to", name.text));
  Target result;
  result.name = names_.id(name.text);
  if (with_attributes && stream_.skip_operator("."))
    result.attribute = stream_.expect(TokenType::kName, "the name of an attribute").text;
  return result;
}

Target ExpressionParser::target(bool with_tuple, bool with_attributes, std::string_view end) {
  if (!with_tuple) return one_target(with_attributes);
  Target result;
  result.is_tuple = true;
  bool has_comma = false;
  while (!at_tuple_end(end)) {
    result.parts.push_back(one_target(with_attributes));
    if (!stream_.skip_operator(",")) break;
    has_comma = true;
  }
  if (result.parts.empty()) stream_.fail_unexpected("a name to assign to");
  if (has_comma) return result;
  Target only = std::move(result.parts[0]);
  return only;
}

}  // namespace spillway::jinja
