// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/arithmetic.h"

#include <cmath>
#include <string_view>

#include "base/error.h"
#include "text/jinja/compare.h"
#include "text/jinja/format.h"
#include "text/jinja/print.h"

namespace spillway::jinja {
namespace {

[[noreturn]] void fail_overflow() {
  fail(ErrorCode::kInvalidArgument, "the chat template computes an integer of more than 64 bits");
}

[[noreturn]] void fail_types(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  fail(ErrorCode::kInvalidArgument, "operator {} does not work on '{}' and '{}'", op, type_name(a),
       type_name(b));
}

void check_divisor(bool is_zero) {
  SPW_CHECK(!is_zero, kInvalidArgument, "the chat template divides by zero");
}

int64_t floor_divide(int64_t a, int64_t b) {
  check_divisor(b == 0);
  if (b == -1) {
    int64_t negated = 0;
    if (__builtin_sub_overflow(int64_t{0}, a, &negated)) fail_overflow();
    return negated;
  }
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

int64_t floor_modulo(int64_t a, int64_t b) {
  check_divisor(b == 0);
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_modulo(double a, double b) {
  check_divisor(b == 0);
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((rest < 0) != (b < 0)) rest += b;
  } else {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

// Divides as Python does, whose result is not the floor of a / b.
double floor_divide(double a, double b) {
  check_divisor(b == 0);
  const double rest = floor_modulo(a, b);
  const double quotient = (a - rest) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value power(const Value& a, const Value& b) {
  if (!a.is_integral() || !b.is_integral() || b.integer() < 0) {
    const double base = a.number();
    const double exponent = b.number();
    SPW_CHECK(base != 0 || exponent >= 0, kInvalidArgument,
              "the chat template raises zero to a negative power");
    const bool is_complex = base < 0 && std::isfinite(exponent) && exponent != std::floor(exponent);
    SPW_CHECK(!is_complex, kInvalidArgument, "the chat template computes a complex number");
    const double result = std::pow(base, exponent);
    SPW_CHECK(!std::isinf(result) || std::isinf(base) || std::isinf(exponent), kInvalidArgument,
              "the chat template computes a number too large");
    return result;
  }
  int64_t result = 1;
  int64_t base = a.integer();
  for (int64_t exponent = b.integer(); exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) {
      // Squares of 0, 1 and -1 do not overflow, so the result would overflow, too.
      fail_overflow();
    }
  }
  return result;
}

Value repeat(Heap& heap, const Value& sequence, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (sequence.is_string()) {
    const Text& text = sequence.text();
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(times), text.size(), &bytes) ||
        bytes > heap.limits().value_bytes)
      heap.charge_bytes(heap.limits().value_bytes + 1);
    TextBuilder out(heap);
    if (!text.empty()) {
      heap.charge_steps(static_cast<uint64_t>(times) / 16);
      for (int64_t i = 0; i < times; ++i) out.append(text);
    }
    return out.take(text.is_markup());
  }
  const List& list = sequence.list();
  uint64_t count = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(times), list.items.size(), &count))
    fail_overflow();
  heap.charge_steps(count);
  std::vector<Value> items;
  if (!list.items.empty()) {
    items.reserve(count);
    for (int64_t i = 0; i < times; ++i)
      items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return heap.list(std::move(items), list.sequence);
}

bool can_repeat(const Value& value) {
  return value.is_string() ||
         (value.is(Kind::kList) &&
          (value.list().sequence == Sequence::kList || value.list().sequence == Sequence::kTuple));
}

Value multiply(Heap& heap, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t product = 0;
    if (__builtin_mul_overflow(a.integer(), b.integer(), &product)) fail_overflow();
    return product;
  }
  if (a.is_number() && b.is_number()) return a.number() * b.number();
  if (can_repeat(a) && b.is_integral()) return repeat(heap, a, b.integer());
  if (a.is_integral() && can_repeat(b)) return repeat(heap, b, a.integer());
  fail_types("*", a, b);
}

}  // namespace

Value add(Heap& heap, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t sum = 0;
    if (__builtin_add_overflow(a.integer(), b.integer(), &sum)) fail_overflow();
    return sum;
  }
  if (a.is_number() && b.is_number()) return a.number() + b.number();
  if (a.is_string() && b.is_string()) {
    const bool markup = a.text().is_markup() || b.text().is_markup();
    TextBuilder out(heap);
    out.append(markup ? escape_html(heap, a.text()) : a.text());
    out.append(markup ? escape_html(heap, b.text()) : b.text());
    return out.take(markup);
  }
  if (can_repeat(a) && can_repeat(b) && !a.is_string() && !b.is_string() &&
      a.list().sequence == b.list().sequence) {
    std::vector<Value> items = a.list().items;
    items.insert(items.end(), b.list().items.begin(), b.list().items.end());
    heap.charge_steps(items.size() / 16);
    return heap.list(std::move(items), a.list().sequence);
  }
  fail_types("+", a, b);
}

Value apply(Heap& heap, BinaryOperator op, const Value& a, const Value& b) {
  const bool numbers = a.is_number() && b.is_number();
  const bool integers = a.is_integral() && b.is_integral();
  switch (op) {
    case BinaryOperator::kAdd:
      return add(heap, a, b);
    case BinaryOperator::kSubtract: {
      if (!numbers) fail_types("-", a, b);
      if (!integers) return a.number() - b.number();
      int64_t difference = 0;
      if (__builtin_sub_overflow(a.integer(), b.integer(), &difference)) fail_overflow();
      return difference;
    }
    case BinaryOperator::kMultiply:
      return multiply(heap, a, b);
    case BinaryOperator::kDivide:
      if (!numbers) fail_types("/", a, b);
      check_divisor(b.number() == 0);
      return a.number() / b.number();
    case BinaryOperator::kFloorDivide:
      if (!numbers) fail_types("//", a, b);
      if (integers) return floor_divide(a.integer(), b.integer());
      return floor_divide(a.number(), b.number());
    case BinaryOperator::kModulo:
      if (a.is_string()) return format_percent(heap, a.text(), b);
      if (!numbers) fail_types("%", a, b);
      if (integers) return floor_modulo(a.integer(), b.integer());
      return floor_modulo(a.number(), b.number());
    case BinaryOperator::kPower:
      if (!numbers) fail_types("**", a, b);
      return power(a, b);
  }
  fail_types("?", a, b);
}

Value negate(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  SPW_CHECK(value.is_number(), kInvalidArgument, "operator - does not work on '{}'",
            type_name(value));
  if (!value.is_integral()) return -value.number();
  int64_t negated = 0;
  if (__builtin_sub_overflow(int64_t{0}, value.integer(), &negated)) fail_overflow();
  return negated;
}

Value plus(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  SPW_CHECK(value.is_number(), kInvalidArgument, "operator + does not work on '{}'",
            type_name(value));
  return value.is_integral() ? Value(value.integer()) : value;
}

}  // namespace spillway::jinja
