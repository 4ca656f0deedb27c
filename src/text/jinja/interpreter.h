// SPDX-License-Identifier: Apache-2.0
// Runs a syntax tree and produces the text.
#pragma once

#include <vector>

#include "text/jinja/frame.h"
#include "text/jinja/heap.h"
#include "text/jinja/syntax_tree.h"

namespace spillway::jinja {

// Does one rendering, on one thread, and is then discarded. Tree and heap must outlive it.
class Interpreter {
 public:
  Interpreter(const Tree& tree, Heap& heap) : tree_(tree), heap_(heap), frames_(heap) {}

  // Throws Error(kInvalidArgument) if the template fails or reaches a limit.
  OriginBytes run(Frame& root);

  uint32_t line() const { return line_; }  // line of the running statement, for errors

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  struct Loop;

  // Statements.
  Flow run_body(const Body& body);
  Flow run_statement(const Statement& statement);
  Flow run_if(const IfStatement& node);
  Flow run_for(const ForStatement& node);
  Flow run_loop(const ForStatement& node, Frame* outer, const Value& iterable, int64_t depth);
  std::vector<Value> filtered(const ForStatement& node, Frame* outer, std::vector<Value> items);
  void run_set_block(const SetBlockStatement& node);
  void run_call_block(const CallStatement& node);
  void run_filter_block(const FilterStatement& node);
  Flow run_scope(const ScopeStatement& node);
  void assign(const Target& target, const Value& value);
  Value render_body(const Body& body);  // renders into a text and a frame of its own

  // Macros.
  Value make_macro(const MacroStatement& macro);
  Value call_macro(const MacroStatement& macro, Frame* outer, const Arguments& arguments);
  void bind_arguments(const MacroStatement& macro, const Arguments& arguments);

  // Expressions.
  Value evaluate(const Expression& expression);
  Value evaluate_or_none(const ExpressionPtr& expression);
  Value evaluate_list(const ListExpression& node);
  Value evaluate_dict(const DictExpression& node);
  Value evaluate_name(const NameExpression& node);
  Value evaluate_item(const ItemExpression& node);
  Value evaluate_slice(const SliceExpression& node);
  Value evaluate_call(const CallExpression& node, const Value* caller);
  Value evaluate_filter(const FilterExpression& node);
  Value evaluate_test(const TestExpression& node);
  Value evaluate_unary(const UnaryExpression& node);
  Value evaluate_binary(const BinaryExpression& node);
  Value evaluate_concat(const ConcatExpression& node);
  Value evaluate_compare(const CompareExpression& node);
  Value evaluate_conditional(const ConditionalExpression& node);
  bool compare(CompareOperator op, const Value& left, const Value& right);
  Arguments evaluate_arguments(const CallArguments& arguments);

  const Tree& tree_;
  Heap& heap_;
  FramePool frames_;
  Frame* frame_ = nullptr;
  TextBuilder* out_ = nullptr;
  const Value* block_text_ = nullptr;  // the input of a block's first filter
  uint32_t nesting_ = 0;
  uint32_t macro_depth_ = 0;
  uint32_t line_ = 0;
};

}  // namespace spillway::jinja
