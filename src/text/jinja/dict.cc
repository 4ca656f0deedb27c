// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/dict.h"

#include <cmath>
#include <functional>

#include "base/error.h"
#include "text/jinja/number_order.h"

namespace spillway::jinja {
namespace {

constexpr size_t kIndexedFrom = 9;      // smaller dicts are searched linearly
constexpr uint32_t kMostKeyDepth = 16;  // limit for tuples within tuples as a key

uint64_t hash_nested(const Value& value, uint32_t depth) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return static_cast<uint64_t>(value.kind());
    case Kind::kBool:
    case Kind::kInt:
      return std::hash<int64_t>{}(value.integer());
    case Kind::kFloat: {
      const double number = value.number();
      if (std::fabs(number) < 9.2e18 && number == std::floor(number))
        return std::hash<int64_t>{}(static_cast<int64_t>(number));
      return std::hash<double>{}(number);
    }
    case Kind::kString:
      return std::hash<std::string_view>{}(value.bytes());
    case Kind::kList: {
      SPW_CHECK(value.list().sequence == Sequence::kTuple, kInvalidArgument,
                "a value of type '{}' cannot be a key", type_name(value));
      SPW_CHECK(depth < kMostKeyDepth, kInvalidArgument, "a key is nested too deeply");
      uint64_t hash = 0x9E3779B97F4A7C15;
      for (const Value& item : value.list().items)
        hash = (hash ^ hash_nested(item, depth + 1)) * 0x100000001B3;
      return hash;
    }
    default:
      fail(ErrorCode::kInvalidArgument, "a value of type '{}' cannot be a key", type_name(value));
  }
}

uint64_t hash_value(const Value& value) { return hash_nested(value, 0); }

bool same_key(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return !has_nan(a, b) && compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) return a.bytes() == b.bytes();
  if (!a.is(Kind::kList)) return true;
  const auto& x = a.list().items;
  const auto& y = b.list().items;
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i)
    if (!same_key(x[i], y[i])) return false;
  return true;
}

}  // namespace

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

}  // namespace spillway::jinja
