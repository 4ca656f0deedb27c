// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value.h"

#include "base/error.h"
#include "base/printable.h"

namespace spillway::jinja {

Value Value::undefined(const std::string* why) {
  Value value;
  value.kind_ = Kind::kUndefined;
  value.why_ = why;
  return value;
}

bool Value::same_as(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kNone:
    case Kind::kUndefined:
      return true;
    case Kind::kBool:
      return bool_ == other.bool_;
    case Kind::kFloat:
      return float_ == other.float_;
    case Kind::kInt:
      return int_ == other.int_;
    case Kind::kString:
      return text_ == other.text_ || bytes() == other.bytes();
    default:
      return list_ == other.list_;  // every pointer of the union may be compared this way
  }
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kDict:
      return "dict";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kFunction:
      return "function";
    case Kind::kObject:
      return value.object().type_name();
    case Kind::kList:
      break;
  }
  switch (value.list().sequence) {
    case Sequence::kList:
      return "list";
    case Sequence::kTuple:
      return "tuple";
    case Sequence::kRange:
      return "range";
    case Sequence::kDictKeys:
      return "dict_keys";
    case Sequence::kDictValues:
      return "dict_values";
    case Sequence::kDictItems:
      return "dict_items";
  }
  return "object";
}

void fail_undefined(const Value& value) {
  fail(ErrorCode::kInvalidArgument, "{}", printable(value.why_undefined(), 300));
}

}  // namespace spillway::jinja
