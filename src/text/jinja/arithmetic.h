// SPDX-License-Identifier: Apache-2.0
// Computes the operators of expressions that make new values, as Python does.
#pragma once

#include <cstdint>

#include "text/jinja/heap.h"

namespace spillway::jinja {

enum class BinaryOperator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
};

// These throw Error(kInvalidArgument) for operands that Python refuses, and for integers that would
// need more than 64 bits.
Value apply(Heap& heap, BinaryOperator op, const Value& a, const Value& b);
Value negate(const Value& value);
Value plus(const Value& value);

Value add(Heap& heap, const Value& a, const Value& b);

}  // namespace spillway::jinja
