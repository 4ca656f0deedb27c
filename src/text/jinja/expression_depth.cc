// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/expression_depth.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

namespace spillway::jinja {
namespace {

uint32_t depth_of(const ExpressionPtr& expression) { return expression ? expression->depth : 0; }

uint32_t depth_of(const std::vector<ExpressionPtr>& expressions) {
  uint32_t depth = 0;
  for (const ExpressionPtr& each : expressions) depth = std::max(depth, depth_of(each));
  return depth;
}

template <class First>
uint32_t depth_of(const std::vector<std::pair<First, ExpressionPtr>>& items) {
  uint32_t depth = 0;
  for (const auto& item : items) depth = std::max(depth, depth_of(item.second));
  return depth;
}

uint32_t depth_of(const CallArguments& arguments) {
  return std::max({depth_of(arguments.positional), depth_of(arguments.named),
                   depth_of(arguments.more_positional), depth_of(arguments.more_named)});
}

uint32_t depth_of(const Literal&) { return 0; }
uint32_t depth_of(const StringLiteral&) { return 0; }
uint32_t depth_of(const NameExpression&) { return 0; }
uint32_t depth_of(const ListExpression& node) { return depth_of(node.items); }
uint32_t depth_of(const DictExpression& node) {
  uint32_t depth = depth_of(node.items);
  for (const auto& item : node.items) depth = std::max(depth, depth_of(item.first));
  return depth;
}
uint32_t depth_of(const AttributeExpression& node) { return depth_of(node.object); }
uint32_t depth_of(const ItemExpression& node) {
  return std::max(depth_of(node.object), depth_of(node.key));
}
uint32_t depth_of(const SliceExpression& node) {
  return std::max(
      {depth_of(node.object), depth_of(node.start), depth_of(node.stop), depth_of(node.step)});
}
uint32_t depth_of(const CallExpression& node) {
  return std::max(depth_of(node.callee), depth_of(node.arguments));
}
uint32_t depth_of(const FilterExpression& node) {
  return std::max(depth_of(node.input), depth_of(node.arguments));
}
uint32_t depth_of(const TestExpression& node) {
  return std::max(depth_of(node.input), depth_of(node.arguments));
}
uint32_t depth_of(const UnaryExpression& node) { return depth_of(node.operand); }
uint32_t depth_of(const BinaryExpression& node) {
  return std::max(depth_of(node.left), depth_of(node.right));
}
uint32_t depth_of(const LogicExpression& node) {
  return std::max(depth_of(node.left), depth_of(node.right));
}
uint32_t depth_of(const ConcatExpression& node) { return depth_of(node.parts); }
uint32_t depth_of(const CompareExpression& node) {
  return std::max(depth_of(node.first), depth_of(node.rest));
}
uint32_t depth_of(const ConditionalExpression& node) {
  return std::max({depth_of(node.test), depth_of(node.then), depth_of(node.otherwise)});
}

}  // namespace

uint32_t depth_inside(const Expression& expression) {
  return std::visit([](const auto& node) { return depth_of(node); }, expression.node);
}

}  // namespace spillway::jinja
