// SPDX-License-Identifier: Apache-2.0
// Evaluates expressions: the part of Interpreter that is recursive over expression trees.
#include <fmt/core.h>

#include "base/error.h"
#include "base/printable.h"
#include "text/jinja/attribute.h"
#include "text/jinja/compare.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/interpreter_scopes.h"
#include "text/jinja/print.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {

// Each kind of expression has its own function, which keeps the stack frames of this recursion
// small.
Value Interpreter::evaluate(const Expression& expression) {
  const NestingScope nested(nesting_, heap_.limits());
  heap_.charge_steps(1);
  const auto& node = expression.node;
  if (const auto* name = std::get_if<NameExpression>(&node)) return evaluate_name(*name);
  if (const auto* literal = std::get_if<StringLiteral>(&node)) return Value(&literal->text->text);
  if (const auto* literal = std::get_if<Literal>(&node)) return literal->value;
  if (const auto* item = std::get_if<ItemExpression>(&node)) return evaluate_item(*item);
  if (const auto* attribute = std::get_if<AttributeExpression>(&node))
    return get_attribute(heap_, evaluate(*attribute->object), attribute->name);
  if (const auto* call = std::get_if<CallExpression>(&node)) return evaluate_call(*call, nullptr);
  if (const auto* filter = std::get_if<FilterExpression>(&node)) return evaluate_filter(*filter);
  if (const auto* test = std::get_if<TestExpression>(&node)) return evaluate_test(*test);
  if (const auto* unary = std::get_if<UnaryExpression>(&node)) return evaluate_unary(*unary);
  if (const auto* binary = std::get_if<BinaryExpression>(&node)) return evaluate_binary(*binary);
  if (const auto* logic = std::get_if<LogicExpression>(&node)) {
    const Value left = evaluate(*logic->left);
    return is_true(left) == logic->is_and ? evaluate(*logic->right) : left;
  }
  if (const auto* concat = std::get_if<ConcatExpression>(&node)) return evaluate_concat(*concat);
  if (const auto* compare = std::get_if<CompareExpression>(&node))
    return evaluate_compare(*compare);
  if (const auto* either = std::get_if<ConditionalExpression>(&node))
    return evaluate_conditional(*either);
  if (const auto* slice = std::get_if<SliceExpression>(&node)) return evaluate_slice(*slice);
  if (const auto* list = std::get_if<ListExpression>(&node)) return evaluate_list(*list);
  return evaluate_dict(std::get<DictExpression>(node));
}

Value Interpreter::evaluate_or_none(const ExpressionPtr& expression) {
  return expression ? evaluate(*expression) : Value();
}

Value Interpreter::evaluate_name(const NameExpression& node) {
  if (const auto value = try_find_variable(frame_, node.name)) return *value;
  return heap_.undefined(fmt::format("'{}' is undefined", printable(tree_.names[node.name], 60)));
}

Value Interpreter::evaluate_list(const ListExpression& node) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ExpressionPtr& item : node.items) items.push_back(evaluate(*item));
  return heap_.list(std::move(items), node.is_tuple ? Sequence::kTuple : Sequence::kList);
}

Value Interpreter::evaluate_dict(const DictExpression& node) {
  Dict dict;
  for (const auto& [key, value] : node.items) {
    const Value name = evaluate(*key);
    dict.set(name, evaluate(*value));
  }
  return heap_.dict(std::move(dict));
}

Value Interpreter::evaluate_item(const ItemExpression& node) {
  const Value object = evaluate(*node.object);
  return get_item(heap_, object, evaluate(*node.key));
}

Value Interpreter::evaluate_slice(const SliceExpression& node) {
  const Value object = evaluate(*node.object);
  const Value start = evaluate_or_none(node.start);
  const Value stop = evaluate_or_none(node.stop);
  return slice(heap_, object, start, stop, evaluate_or_none(node.step));
}

Arguments Interpreter::evaluate_arguments(const CallArguments& from) {
  Arguments arguments;
  for (const ExpressionPtr& each : from.positional) arguments.positional.push_back(evaluate(*each));
  for (const auto& [name, value] : from.named) arguments.named.emplace_back(name, evaluate(*value));
  if (from.more_positional) {
    for (const Value& item : items_of(heap_, evaluate(*from.more_positional)))
      arguments.positional.push_back(item);
  }
  if (from.more_named) {
    const Value more = evaluate(*from.more_named);
    SPW_CHECK(more.is(Kind::kDict), kInvalidArgument, "** wants a mapping, not '{}'",
              type_name(more));
    for (const auto& [name, value] : more.dict().items()) {
      SPW_CHECK(name.is_string(), kInvalidArgument, "** wants strings as keys");
      arguments.named.emplace_back(name.bytes(), value);
    }
  }
  return arguments;
}

Value Interpreter::evaluate_call(const CallExpression& node, const Value* caller) {
  // A method is called directly, without making a function value of it.
  if (const auto* attribute = std::get_if<AttributeExpression>(&node.callee->node)) {
    const Value object = evaluate(*attribute->object);
    if (object.is_string() || object.is(Kind::kDict) || object.is(Kind::kList)) {
      const Arguments arguments = evaluate_arguments(node.arguments);
      if (const auto result = try_call_method(heap_, object, attribute->name, arguments))
        return *result;
      return call_value(heap_, get_attribute(heap_, object, attribute->name), arguments);
    }
    const Value callee = get_attribute(heap_, object, attribute->name);
    Arguments arguments = evaluate_arguments(node.arguments);
    if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
    return call_value(heap_, callee, arguments);
  }
  const Value callee = evaluate(*node.callee);
  Arguments arguments = evaluate_arguments(node.arguments);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return call_value(heap_, callee, arguments);
}

Value Interpreter::evaluate_filter(const FilterExpression& node) {
  const Value input = node.input ? evaluate(*node.input) : *block_text_;
  return apply_filter(heap_, node.name, input, evaluate_arguments(node.arguments));
}

Value Interpreter::evaluate_test(const TestExpression& node) {
  const Value input = evaluate(*node.input);
  return apply_test(heap_, node.name, input, evaluate_arguments(node.arguments));
}

Value Interpreter::evaluate_unary(const UnaryExpression& node) {
  const Value operand = evaluate(*node.operand);
  switch (node.op) {
    case UnaryOperator::kMinus:
      return negate(operand);
    case UnaryOperator::kPlus:
      return plus(operand);
    case UnaryOperator::kNot:
      break;
  }
  return !is_true(operand);
}

Value Interpreter::evaluate_binary(const BinaryExpression& node) {
  const Value left = evaluate(*node.left);
  return apply(heap_, node.op, left, evaluate(*node.right));
}

Value Interpreter::evaluate_concat(const ConcatExpression& node) {
  TextBuilder out(heap_);
  for (const ExpressionPtr& part : node.parts) append_str(heap_, out, evaluate(*part));
  return out.take();
}

bool Interpreter::compare(CompareOperator op, const Value& left, const Value& right) {
  switch (op) {
    case CompareOperator::kEqual:
      return equals(heap_, left, right);
    case CompareOperator::kNotEqual:
      return !equals(heap_, left, right);
    case CompareOperator::kLess:
      return less(heap_, left, right);
    case CompareOperator::kGreater:
      return less(heap_, right, left);
    case CompareOperator::kLessEqual:
      return less(heap_, left, right) || equals(heap_, left, right);
    case CompareOperator::kGreaterEqual:
      return less(heap_, right, left) || equals(heap_, left, right);
    case CompareOperator::kIn:
      return contains(heap_, right, left);
    case CompareOperator::kNotIn:
      return !contains(heap_, right, left);
  }
  return false;
}

Value Interpreter::evaluate_compare(const CompareExpression& node) {
  Value left = evaluate(*node.first);
  for (const auto& [op, expression] : node.rest) {
    const Value right = evaluate(*expression);
    if (!compare(op, left, right)) return false;
    left = right;
  }
  return true;
}

Value Interpreter::evaluate_conditional(const ConditionalExpression& node) {
  if (is_true(evaluate(*node.test))) return evaluate(*node.then);
  if (node.otherwise) return evaluate(*node.otherwise);
  return heap_.undefined("an inline 'if' without 'else' has no value when its test fails");
}

}  // namespace spillway::jinja
