// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value.h"

#include "text/jinja/compare.h"

namespace spillway::jinja {
namespace {

constexpr size_t kIndexedFrom = 9;  // smaller dicts are searched from the front

}  // namespace

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
      return list_ == other.list_;  // any of the pointers
  }
}

std::optional<size_t> Dict::try_position(const Value& key, uint64_t hash) const {
  if (positions_.empty()) {
    for (size_t i = 0; i < items_.size(); ++i)
      if (same_key(items_[i].first, key)) return i;
    return std::nullopt;
  }
  const auto [begin, end] = positions_.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (same_key(items_[it->second].first, key)) return it->second;
  return std::nullopt;
}

std::optional<Value> Dict::try_find(const Value& key) const {
  const auto at = try_position(key, hash_value(key));
  if (!at) return std::nullopt;
  return items_[*at].second;
}

std::optional<Value> Dict::try_find(std::string_view key) const {
  const Text text(key, Origin::kTemplate);
  return try_find(Value(&text));
}

void Dict::set(const Value& key, const Value& value) {
  const uint64_t hash = hash_value(key);
  if (const auto at = try_position(key, hash)) {
    items_[*at].second = value;
    return;
  }
  items_.emplace_back(key, value);
  if (!positions_.empty()) {
    positions_.emplace(hash, items_.size() - 1);
  } else if (items_.size() == kIndexedFrom) {
    for (size_t i = 0; i < items_.size(); ++i) positions_.emplace(hash_value(items_[i].first), i);
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

}  // namespace spillway::jinja
