// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/interpreter.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "text/jinja/compare.h"
#include "text/jinja/interpreter_scopes.h"
#include "text/jinja/loop.h"
#include "text/jinja/print.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {
namespace {

constexpr std::string_view kLoop = "loop";
constexpr std::string_view kCaller = "caller";

NameId id_of(const Tree& tree, std::string_view name) {
  const auto found = std::find(tree.names.begin(), tree.names.end(), name);
  return static_cast<NameId>(found - tree.names.begin());  // if missing, an id that no name has
}

}  // namespace

OriginBytes Interpreter::run(Frame& root) {
  frame_ = &root;
  OutputScope output(out_, heap_);
  run_body(tree_.body);
  return output.take_bytes();
}

Interpreter::Flow Interpreter::run_body(const Body& body) {
  const NestingScope nested(nesting_, heap_.limits());
  for (const auto& statement : body) {
    const Flow flow = run_statement(*statement);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement) {
  heap_.charge_steps(1);
  line_ = statement.line;
  const auto& node = statement.node;
  if (const auto* data = std::get_if<DataStatement>(&node)) {
    out_->append(data->text->text);
  } else if (const auto* output = std::get_if<OutputStatement>(&node)) {
    const Value value = evaluate(*output->value);
    append_str(heap_, *out_, value);
  } else if (const auto* choice = std::get_if<IfStatement>(&node)) {
    return run_if(*choice);
  } else if (const auto* set = std::get_if<SetStatement>(&node)) {
    assign(set->target, evaluate(*set->value));
  } else if (const auto* loop = std::get_if<ForStatement>(&node)) {
    return run_for(*loop);
  } else if (const auto* macro = std::get_if<MacroStatement>(&node)) {
    frame_->variables[macro->name_id] = make_macro(*macro);
  } else if (const auto* set_block = std::get_if<SetBlockStatement>(&node)) {
    run_set_block(*set_block);
  } else if (const auto* call = std::get_if<CallStatement>(&node)) {
    run_call_block(*call);
  } else if (const auto* filter = std::get_if<FilterStatement>(&node)) {
    run_filter_block(*filter);
  } else if (const auto* scope = std::get_if<ScopeStatement>(&node)) {
    return run_scope(*scope);
  } else if (std::holds_alternative<BreakStatement>(node)) {
    return Flow::kBreak;
  } else {
    return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const IfStatement& node) {
  for (const auto& [test, body] : node.branches)
    if (is_true(evaluate(*test))) return run_body(body);
  return run_body(node.otherwise);
}

Interpreter::Flow Interpreter::run_for(const ForStatement& node) {
  const Value iterable = evaluate(*node.items);
  return run_loop(node, frame_, iterable, 1);
}

std::vector<Value> Interpreter::filtered(const ForStatement& node, Frame* outer,
                                         std::vector<Value> items) {
  if (!node.filter) return items;
  std::vector<Value> kept;
  for (const Value& item : items) {
    const FrameScope scope(frames_, frame_, outer);
    assign(node.target, item);
    if (is_true(evaluate(*node.filter))) kept.push_back(item);
  }
  return kept;
}

Interpreter::Flow Interpreter::run_loop(const ForStatement& node, Frame* outer,
                                        const Value& iterable, int64_t depth) {
  std::function<Value(const Value&)> recurse;
  if (node.is_recursive) {
    capture(outer);
    recurse = [this, &node, outer, depth](const Value& inner) {
      const NestingScope nested(nesting_, heap_.limits());
      OutputScope output(out_, heap_);
      run_loop(node, outer, inner, depth + 1);
      return output.take();
    };
  }
  auto owned =
      iterable.is(Kind::kList) && !node.filter
          ? std::make_unique<LoopObject>(heap_, iterable.list(), depth, std::move(recurse))
          : std::make_unique<LoopObject>(heap_, filtered(node, outer, items_of(heap_, iterable)),
                                         depth, std::move(recurse));
  LoopObject& loop = *owned;
  const Value loop_value = heap_.object(std::move(owned));
  const NameId loop_name = id_of(tree_, kLoop);
  bool completed = false;  // `else` also runs if all iterations end in break or continue
  for (size_t i = 0; i < loop.items().size(); ++i) {
    heap_.charge_steps(1);
    const FrameScope scope(frames_, frame_, outer);
    loop.go_to(i);
    frame_->variables[loop_name] = loop_value;
    assign(node.target, loop.items()[i]);
    const Flow flow = run_body(node.body);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) completed = true;
  }
  loop.finish();
  if (completed) return Flow::kNormal;
  const FrameScope scope(frames_, frame_, outer);
  return run_body(node.otherwise);
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const std::vector<Value> items = items_of(heap_, value);
    SPW_CHECK(items.size() == target.parts.size(), kInvalidArgument,
              "{} values are assigned to {} names", items.size(), target.parts.size());
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) {
    frame_->variables[target.name] = value;
    return;
  }
  const auto space = try_find_variable(frame_, target.name);
  SPW_CHECK(space && space->is(Kind::kNamespace), kInvalidArgument,
            "an attribute of '{}' is assigned to, which is no namespace",
            printable(tree_.names[target.name], 60));
  heap_.charge_bytes(2 * sizeof(Value));
  space->name_space().attributes.set(heap_.text(Text(target.attribute, Origin::kTemplate)), value);
}

Value Interpreter::render_body(const Body& body) {
  const FrameScope scope(frames_, frame_, frame_);
  OutputScope output(out_, heap_);
  run_body(body);
  return output.take();
}

void Interpreter::run_set_block(const SetBlockStatement& node) {
  Value text = render_body(node.body);
  if (node.filter) {
    const Value* before = std::exchange(block_text_, &text);
    const Value result = evaluate(*node.filter);
    block_text_ = before;
    text = result;
  }
  assign(node.target, text);
}

void Interpreter::run_filter_block(const FilterStatement& node) {
  const Value text = render_body(node.body);
  const Value* before = std::exchange(block_text_, &text);
  const Value result = evaluate(*node.filter);
  block_text_ = before;
  append_str(heap_, *out_, result);
}

void Interpreter::run_call_block(const CallStatement& node) {
  const Value caller = make_macro(node.caller);
  const Value result = evaluate_call(std::get<CallExpression>(node.call->node), &caller);
  append_str(heap_, *out_, result);
}

Interpreter::Flow Interpreter::run_scope(const ScopeStatement& node) {
  std::vector<Value> values;
  for (const auto& assignment : node.assignments) values.push_back(evaluate(*assignment.second));
  const FrameScope scope(frames_, frame_, frame_);
  for (size_t i = 0; i < values.size(); ++i) assign(node.assignments[i].first, values[i]);
  return run_body(node.body);
}

Value Interpreter::make_macro(const MacroStatement& macro) {
  Frame* outer = frame_;
  capture(outer);
  std::vector<Value> names;
  for (const auto& parameter : macro.parameters) names.push_back(heap_.constant(parameter.first));
  return heap_.function(
      {.name = macro.name,
       .call = [this, &macro,
                outer](const Arguments& arguments) { return call_macro(macro, outer, arguments); },
       .attributes = {{"name", heap_.constant(macro.name)},
                      {"arguments", heap_.tuple(std::move(names))},
                      {"catch_kwargs", macro.uses_kwargs},
                      {"catch_varargs", macro.uses_varargs},
                      {"caller", macro.uses_caller}}});
}

Value Interpreter::call_macro(const MacroStatement& macro, Frame* outer,
                              const Arguments& arguments) {
  const NestingScope nested(nesting_, heap_.limits());
  SPW_CHECK(macro_depth_ < heap_.limits().macro_depth, kInvalidArgument,
            "macros of the chat template call each other more than {} deep",
            heap_.limits().macro_depth);
  ++macro_depth_;
  const uint32_t line = line_;
  Value result;
  try {
    const FrameScope scope(frames_, frame_, outer);
    bind_arguments(macro, arguments);
    OutputScope output(out_, heap_);
    run_body(macro.body);
    result = output.take();
  } catch (...) {
    --macro_depth_;
    throw;
  }
  --macro_depth_;
  line_ = line;
  return result;
}

void Interpreter::bind_arguments(const MacroStatement& macro, const Arguments& arguments) {
  const auto& parameters = macro.parameters;
  const size_t given = std::min(arguments.positional.size(), parameters.size());
  std::vector<bool> bound(parameters.size());
  for (size_t i = 0; i < given; ++i) {
    frame_->variables[parameters[i].second] = arguments.positional[i];
    bound[i] = true;
  }
  Dict more_named;
  std::optional<Value> caller;
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&of = name](const auto& p) { return p.first == of; });
    if (found != parameters.end()) {
      const auto i = static_cast<size_t>(found - parameters.begin());
      SPW_CHECK(!bound[i], kInvalidArgument, "the macro '{}' is given '{}' twice", macro.name,
                name);
      frame_->variables[found->second] = value;
      bound[i] = true;
    } else if (name == kCaller && macro.uses_caller) {
      caller = value;
    } else {
      SPW_CHECK(macro.uses_kwargs && name != kCaller, kInvalidArgument,
                "the macro '{}' takes no argument '{}'", printable(macro.name, 60),
                printable(name, 60));
      more_named.set(heap_.text(Text(name, Origin::kTemplate)), value);
    }
  }
  SPW_CHECK(arguments.positional.size() <= parameters.size() || macro.uses_varargs,
            kInvalidArgument, "the macro '{}' takes at most {} arguments",
            printable(macro.name, 60), parameters.size());

  const bool has_caller = std::any_of(parameters.begin(), parameters.end(),
                                      [](const auto& each) { return each.first == kCaller; });
  if (macro.uses_caller && !has_caller)
    frame_->variables[id_of(tree_, kCaller)] = caller ? *caller : heap_.undefined("no caller");
  if (macro.uses_varargs)
    frame_->variables[id_of(tree_, "varargs")] = heap_.tuple(
        std::vector<Value>(arguments.positional.begin() + static_cast<std::ptrdiff_t>(given),
                           arguments.positional.end()));
  if (macro.uses_kwargs)
    frame_->variables[id_of(tree_, "kwargs")] = heap_.dict(std::move(more_named));

  const size_t without_default = parameters.size() - macro.defaults.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (bound[i]) continue;
    frame_->variables[parameters[i].second] =
        i >= without_default ? evaluate(*macro.defaults[i - without_default])
                             : heap_.undefined(fmt::format("the parameter '{}' was not given",
                                                           printable(parameters[i].first, 60)));
  }
}

}  // namespace spillway::jinja
