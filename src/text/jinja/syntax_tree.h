// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a template. It is immutable once built, and shared by all renderings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/arithmetic.h"
#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace spillway::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Body = std::vector<std::unique_ptr<const Statement>>;
using NameId = uint32_t;  // index into Tree::names

// Text written in the template. The value of a literal refers to it.
struct TemplateText {
  explicit TemplateText(std::string written)
      : bytes(std::move(written)), text(bytes, Origin::kTemplate) {}
  TemplateText(const TemplateText&) = delete;
  TemplateText& operator=(const TemplateText&) = delete;
  std::string bytes;
  Text text;
};

struct Literal {
  Value value;  // not a string
};
struct StringLiteral {
  std::unique_ptr<const TemplateText> text;
};
struct NameExpression {
  NameId name;
};
struct ListExpression {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};
struct DictExpression {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct AttributeExpression {
  ExpressionPtr object;
  std::string name;
};
struct ItemExpression {
  ExpressionPtr object;
  ExpressionPtr key;
};
struct SliceExpression {
  ExpressionPtr object;
  ExpressionPtr start;  // any of the three may be null
  ExpressionPtr stop;
  ExpressionPtr step;
};
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *args, or null
  ExpressionPtr more_named;       // **kwargs, or null
};
struct CallExpression {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterExpression {
  ExpressionPtr input;  // null for the text of the block
  std::string name;
  CallArguments arguments;
};
struct TestExpression {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};
enum class UnaryOperator : uint8_t { kNot, kMinus, kPlus };
struct UnaryExpression {
  UnaryOperator op;
  ExpressionPtr operand;
};
struct BinaryExpression {
  BinaryOperator op;
  ExpressionPtr left;
  ExpressionPtr right;
};
struct LogicExpression {
  bool is_and;
  ExpressionPtr left;
  ExpressionPtr right;
};
struct ConcatExpression {
  std::vector<ExpressionPtr> parts;
};
enum class CompareOperator : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};
struct CompareExpression {
  ExpressionPtr first;
  std::vector<std::pair<CompareOperator, ExpressionPtr>> rest;
};
struct ConditionalExpression {
  ExpressionPtr test;
  ExpressionPtr then;
  ExpressionPtr otherwise;  // may be null
};

struct Expression {
  std::variant<Literal, StringLiteral, NameExpression, ListExpression, DictExpression,
               AttributeExpression, ItemExpression, SliceExpression, CallExpression,
               FilterExpression, TestExpression, UnaryExpression, BinaryExpression, LogicExpression,
               ConcatExpression, CompareExpression, ConditionalExpression>
      node;
  uint32_t line = 0;
  uint32_t depth = 1;  // depth of the whole expression: limited, because evaluation is recursive
};

// The left side of an assignment: a name, an attribute of a namespace, or several of them.
struct Target {
  NameId name = 0;
  std::string attribute;  // empty to assign to the name itself
  std::vector<Target> parts;
  bool is_tuple = false;
};

struct DataStatement {
  std::unique_ptr<const TemplateText> text;
};
struct OutputStatement {
  ExpressionPtr value;
};
struct ForStatement {
  Target target;
  ExpressionPtr items;
  ExpressionPtr filter;  // may be null
  Body body;
  Body otherwise;
  bool is_recursive = false;
};
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct SetStatement {
  Target target;
  ExpressionPtr value;
};
struct SetBlockStatement {
  Target target;
  ExpressionPtr filter;  // may be null
  Body body;
};
struct MacroStatement {
  std::string name;
  NameId name_id = 0;
  std::vector<std::pair<std::string, NameId>> parameters;
  std::vector<ExpressionPtr> defaults;  // defaults of the last parameters
  Body body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};
struct CallStatement {
  MacroStatement caller;
  ExpressionPtr call;
};
struct FilterStatement {
  ExpressionPtr filter;
  Body body;
};
// The statements `with` and `generation`; the latter has no assignments.
struct ScopeStatement {
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Body body;
};
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  std::variant<DataStatement, OutputStatement, ForStatement, IfStatement, SetStatement,
               SetBlockStatement, MacroStatement, CallStatement, FilterStatement, ScopeStatement,
               BreakStatement, ContinueStatement>
      node;
  uint32_t line = 0;
};

struct Tree {
  Body body;
  std::vector<std::string> names;
};

}  // namespace spillway::jinja
