// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "base/printable.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/attribute.h"
#include "text/jinja/compare.h"
#include "text/jinja/filters.h"
#include "text/jinja/print.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {
namespace {

// Wraps a test that takes no arguments.
template <bool (*kTest)(const Value&)>
bool alone(Heap&, const Value& input, const Arguments& arguments) {
  const Parameters given("this test", arguments, {});
  return kTest(input);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is(Kind::kBool); }
bool is_false(const Value& value) { return value.is(Kind::kBool) && !value.boolean(); }
bool is_truth(const Value& value) { return value.is(Kind::kBool) && value.boolean(); }
bool is_integer(const Value& value) { return value.is(Kind::kInt); }
bool is_float(const Value& value) { return value.is(Kind::kFloat); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is(Kind::kDict); }
bool is_callable(const Value& value) {
  return value.is(Kind::kFunction) || value.is(Kind::kObject) || value.is_undefined();
}
// Accepts values with a length and elements; views of a dict have no elements to index.
bool is_sequence(const Value& value) {
  return value.is_string() || value.is(Kind::kDict) || value.is_undefined() ||
         (value.is(Kind::kList) && !value.list().is_view());
}
bool is_escaped(const Value& value) { return value.is_string() && value.text().is_markup(); }

Value modulo(Heap& heap, const Value& input, const Value& by) {
  return apply(heap, BinaryOperator::kModulo, input, by);
}

bool is_even(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("even", arguments, {});
  return equals(heap, modulo(heap, input, int64_t{2}), int64_t{0});
}

bool is_odd(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("odd", arguments, {});
  return equals(heap, modulo(heap, input, int64_t{2}), int64_t{1});
}

bool is_divisible(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("divisibleby", arguments, {"num"});
  return equals(heap, modulo(heap, input, given.value(0)), int64_t{0});
}

template <bool (*kCompare)(Heap&, const Value&, const Value&)>
bool compared(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("this test", arguments, {"other"});
  return kCompare(heap, input, given.value(0));
}

bool differs(Heap& heap, const Value& a, const Value& b) { return !equals(heap, a, b); }
bool greater(Heap& heap, const Value& a, const Value& b) { return less(heap, b, a); }
bool at_most(Heap& heap, const Value& a, const Value& b) {
  return less(heap, a, b) || equals(heap, a, b);
}
bool at_least(Heap& heap, const Value& a, const Value& b) { return at_most(heap, b, a); }
bool is_in(Heap& heap, const Value& a, const Value& b) { return contains(heap, b, a); }
bool is_same(Heap&, const Value& a, const Value& b) { return a.same_as(b); }

bool iterable(Heap&, const Value& input, const Arguments& arguments) {
  const Parameters given("iterable", arguments, {});
  return is_iterable(input);
}

template <bool kUpper>
bool has_case(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("this test", arguments, {});
  const auto answer =
      try_call_method(heap, to_str(heap, input), kUpper ? "isupper" : "islower", arguments);
  return answer && answer->boolean();
}

bool names_filter(Heap&, const Value& input, const Arguments& arguments) {
  const Parameters given("filter", arguments, {});
  return input.is_string() && filter_exists(input.bytes());
}

bool names_test(Heap&, const Value& input, const Arguments& arguments) {
  const Parameters given("test", arguments, {});
  return input.is_string() && test_exists(input.bytes());
}

const std::unordered_map<std::string_view, Test>& tests() {
  static const std::unordered_map<std::string_view, Test> kTests{
      {"!=", compared<differs>},
      {"<", compared<less>},
      {"<=", compared<at_most>},
      {"==", compared<equals>},
      {">", compared<greater>},
      {">=", compared<at_least>},
      {"boolean", alone<is_boolean>},
      {"callable", alone<is_callable>},
      {"defined", alone<is_defined>},
      {"divisibleby", is_divisible},
      {"eq", compared<equals>},
      {"equalto", compared<equals>},
      {"escaped", alone<is_escaped>},
      {"even", is_even},
      {"false", alone<is_false>},
      {"filter", names_filter},
      {"float", alone<is_float>},
      {"ge", compared<at_least>},
      {"greaterthan", compared<greater>},
      {"gt", compared<greater>},
      {"in", compared<is_in>},
      {"integer", alone<is_integer>},
      {"iterable", iterable},
      {"le", compared<at_most>},
      {"lessthan", compared<less>},
      {"lower", has_case<false>},
      {"lt", compared<less>},
      {"mapping", alone<is_mapping>},
      {"ne", compared<differs>},
      {"none", alone<is_none>},
      {"number", alone<is_number>},
      {"odd", is_odd},
      {"sameas", compared<is_same>},
      {"sequence", alone<is_sequence>},
      {"string", alone<is_string>},
      {"test", names_test},
      {"true", alone<is_truth>},
      {"undefined", alone<is_undefined>},
      {"upper", has_case<true>},
  };
  return kTests;
}

}  // namespace

bool apply_test(Heap& heap, std::string_view name, const Value& input, const Arguments& arguments) {
  heap.charge_steps(1);
  const auto found = tests().find(name);
  SPW_CHECK(found != tests().end(), kInvalidArgument, "there is no test '{}'", printable(name, 60));
  return found->second(heap, input, arguments);
}

bool test_exists(std::string_view name) { return tests().contains(name); }

}  // namespace spillway::jinja
