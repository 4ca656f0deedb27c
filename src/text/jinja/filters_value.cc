// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>

#include "base/error.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/attribute.h"
#include "text/jinja/compare.h"
#include "text/jinja/filters.h"
#include "text/jinja/number_text.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {
namespace {

Value default_value(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && !(given.flag_or(1, false) && !is_true(input))) return input;
  return given.has(0) ? given.value(0) : heap.constant("");
}

Value absolute(Heap&, const Value& input, const Arguments& arguments) {
  const Parameters given("abs", arguments, {});
  if (input.is_undefined()) fail_undefined(input);
  SPW_CHECK(input.is_number(), kInvalidArgument, "abs wants a number, not '{}'", type_name(input));
  if (!input.is_integral()) return std::fabs(input.number());
  return input.integer() < 0 ? negate(input) : plus(input);
}

Value to_float(Heap&, const Value& input, const Arguments& arguments) {
  const Parameters given("float", arguments, {"default"});
  if (input.is_undefined()) fail_undefined(input);
  if (input.is_number()) return input.number();
  const Value otherwise = given.value_or(0, 0.0);
  if (!input.is_string()) return otherwise;
  const auto number = try_parse_float(input.bytes());
  return number ? Value(*number) : otherwise;
}

Value to_int(Heap&, const Value& input, const Arguments& arguments) {
  const Parameters given("int", arguments, {"default", "base"});
  if (input.is_undefined()) fail_undefined(input);
  if (input.is_integral()) return input.integer();
  const Value otherwise = given.value_or(0, int64_t{0});
  std::optional<double> number;
  if (input.is(Kind::kFloat)) number = input.number();
  if (input.is_string()) {
    const int64_t base = given.integer_or(1, 10);
    if (const auto whole = try_parse_int(input.bytes(), base)) return *whole;
    number = try_parse_float(input.bytes());
  }
  if (!number || !std::isfinite(*number)) {
    SPW_CHECK(!(input.is(Kind::kFloat) && std::isinf(input.number())), kInvalidArgument,
              "infinity is no whole number");
    return otherwise;
  }
  SPW_CHECK(std::fabs(*number) < 9.2e18, kInvalidArgument,
            "the chat template computes an integer of more than 64 bits");
  return static_cast<int64_t>(*number);
}

// Rounds half to even on the decimal digits of the number, as Python's round() does.
double round_to(double number, int64_t precision) {
  if (!std::isfinite(number) || precision > 300) return number;
  if (precision >= 0) {
    const std::string text = fmt::format("{:.{}f}", number, precision);
    return try_parse_float(text).value_or(number);
  }
  if (precision < -300) return std::copysign(0.0, number);
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(number / unit) * unit;
}

int64_t round_integer(int64_t number, int64_t precision) {
  if (precision >= 0) return number;
  if (precision < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = 0; i < -precision; ++i) unit *= 10;
  int64_t rest = number % unit;
  int64_t base = number - rest;
  if (rest < 0) {
    rest += unit;
    SPW_CHECK(!__builtin_sub_overflow(base, unit, &base), kInvalidArgument,
              "the chat template computes an integer of more than 64 bits");
  }
  const bool up = rest > unit - rest || (rest == unit - rest && (base / unit) % 2 != 0);
  SPW_CHECK(!up || !__builtin_add_overflow(base, unit, &base), kInvalidArgument,
            "the chat template computes an integer of more than 64 bits");
  return base;
}

Value round_number(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("round", arguments, {"precision", "method"});
  if (input.is_undefined()) fail_undefined(input);
  const std::string_view method = given.has(1) ? given.text(1).bytes() : "common";
  SPW_CHECK(method == "common" || method == "ceil" || method == "floor", kInvalidArgument,
            "round knows the methods common, ceil and floor");
  SPW_CHECK(input.is_number(), kInvalidArgument, "round wants a number, not '{}'",
            type_name(input));
  const int64_t precision = given.integer_or(0, 0);
  if (method == "common") {
    if (input.is_integral()) return round_integer(input.integer(), precision);
    return round_to(input.number(), precision);
  }
  const Value unit = apply(heap, BinaryOperator::kPower, int64_t{10}, precision);
  const double scaled = apply(heap, BinaryOperator::kMultiply, input, unit).number();
  SPW_CHECK(std::isfinite(scaled), kInvalidArgument, "round wants a finite number");
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return whole / unit.number();
}

Value attribute(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("attr", arguments, {"name"});
  const std::string_view name = given.text(0).bytes();
  // Looks up attributes only, no elements.
  if (input.is(Kind::kDict)) {
    const Value empty = heap.dict({});
    return get_attribute(heap, empty, name);
  }
  return get_attribute(heap, input, name);
}

Value length(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("length", arguments, {});
  return length_of(heap, input);
}

Value file_size(Heap& heap, const Value& input, const Arguments& arguments) {
  const Parameters given("filesizeformat", arguments, {"binary"});
  const bool binary = given.flag_or(0, false);
  if (input.is_undefined()) fail_undefined(input);
  std::optional<double> bytes;
  if (input.is_number()) bytes = input.number();
  if (input.is_string()) bytes = try_parse_float(input.bytes());
  SPW_CHECK(bytes && std::isfinite(*bytes), kInvalidArgument, "filesizeformat wants a number");
  const double base = binary ? 1024 : 1000;
  if (*bytes == 1) return heap.constant("1 Byte");
  if (*bytes < base)
    return heap.text(fmt::format("{} Bytes", static_cast<int64_t>(*bytes)), Origin::kTemplate);
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  size_t prefix = 0;
  for (; prefix < kPrefixes.size(); ++prefix) {
    unit *= base;
    if (*bytes < unit || prefix + 1 == kPrefixes.size()) break;
  }
  std::string name(1, kPrefixes[prefix]);
  if (binary) name = (prefix == 0 ? "K" : name) + "i";
  return heap.text(fmt::format("{:.1f} {}B", base * *bytes / unit, name), Origin::kTemplate);
}

}  // namespace

const FilterTable& value_filters() {
  static const FilterTable kTable{
      {"abs", absolute},          {"attr", attribute},
      {"count", length},          {"d", default_value},
      {"default", default_value}, {"filesizeformat", file_size},
      {"float", to_float},        {"int", to_int},
      {"length", length},         {"round", round_number},
  };
  return kTable;
}

}  // namespace spillway::jinja
