// SPDX-License-Identifier: Apache-2.0
#include "serve/request_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "serve/api_error.h"

namespace spillway {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kMostNameBytes = 80;
constexpr double kExactIntegers = 0x1p53;  // a double is exact for all integers up to this

std::string without_indices(std::string_view param) {
  std::string name;
  bool in_index = false;
  for (const char c : param) {
    if (c == ']') in_index = false;
    if (!in_index) name += c;
    if (c == '[') in_index = true;
  }
  return name;
}

}  // namespace

void refuse_field(const char* code, const std::string& param, const std::string& message) {
  throw ApiError(400, code, param, message);
}

void refuse_field_type(const std::string& param, const char* wanted) {
  refuse_field("invalid_type", param, fmt::format("'{}' must be {}", param, wanted));
}

void IgnoredFields::add(const std::string& param) {
  if (policy_ == UnknownFields::kRefuse) {
    const std::string shown = printable(param, kMostNameBytes);
    refuse_field("unknown_parameter", shown, fmt::format("'{}' is not a known field here", shown));
  }
  if (names_.size() == kMostNames) return;
  std::string name = printable(without_indices(param), kMostNameBytes);
  if (std::ranges::find(names_, name) == names_.end()) names_.push_back(std::move(name));
}

bool is_whole_number(const json& value) {
  if (value.is_number_integer()) return true;
  if (!value.is_number_float()) return false;
  const auto number = value.get<double>();
  return std::isfinite(number) && std::floor(number) == number;
}

std::optional<int64_t> try_whole_number(const json& value) {
  if (!is_whole_number(value)) return std::nullopt;
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::abs(number) > kExactIntegers) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMost) return std::nullopt;
  return value.get<int64_t>();
}

RequestFields::RequestFields(const json& object, std::string path, IgnoredFields& ignored)
    : object_(object), path_(std::move(path)), ignored_(ignored) {
  if (!object.is_object()) refuse_field_type(path_.empty() ? "body" : path_, "an object");
}

std::string RequestFields::param(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

const json* RequestFields::try_take(std::string_view name) {
  taken_.insert(std::string(name));
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const json& RequestFields::take(std::string_view name) {
  const json* value = try_take(name);
  if (value == nullptr)
    refuse_field("missing_required_parameter", param(name),
                 fmt::format("'{}' is missing", param(name)));
  return *value;
}

bool RequestFields::has(std::string_view name) const { return object_.contains(name); }

std::string RequestFields::as_string(const json& value, const std::string& param) {
  if (!value.is_string()) refuse_field_type(param, "a string");
  return value.get<std::string>();
}

int64_t RequestFields::as_integer(const json& value, const std::string& param, int64_t low,
                                  int64_t high) {
  if (!is_whole_number(value)) refuse_field_type(param, "an integer");
  const std::optional<int64_t> number = try_whole_number(value);
  if (!number || *number < low || *number > high)
    refuse_field("invalid_value", param,
                 fmt::format("'{}' is {}; give {} to {}", param, value.dump(), low, high));
  return *number;
}

void RequestFields::number_into(std::string_view name, double low, double high, float& out) {
  if (const json* value = try_take(name)) out = as_number(*value, param(name), low, high);
}

float RequestFields::as_number(const json& value, const std::string& param, double low,
                               double high) {
  if (!value.is_number()) refuse_field_type(param, "a number");
  const auto number = value.get<double>();
  if (!(number >= low && number <= high))
    refuse_field("invalid_value", param,
                 fmt::format("'{}' is {}; give {} to {}", param, value.dump(), low, high));
  return static_cast<float>(number);
}

void RequestFields::boolean_into(std::string_view name, bool& out) {
  const json* value = try_take(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) refuse_field_type(param(name), "true or false");
  out = value->get<bool>();
}

void RequestFields::end() {
  for (const auto& [name, value] : object_.items())
    if (!value.is_null() && !taken_.contains(name)) ignored_.add(param(name));
}

}  // namespace spillway
