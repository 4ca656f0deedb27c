// SPDX-License-Identifier: Apache-2.0
// Reading a JSON document so that every complaint names the field. For .cc files of this folder
// only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace spillway {

// Throws Error(kInvalidArgument) with the place of the first mistake. Nesting costs heap, not
// stack.
inline nlohmann::json parse_json(std::string_view text, std::string_view where) {
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    fail(ErrorCode::kInvalidArgument, "{}: not valid JSON at byte {}", where, error.byte);
  }
}

// A value and the path that leads to it. Refers to the document, which must outlive it. A wrong
// type throws Error(kInvalidArgument).
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const nlohmann::json& value() const { return *value_; }
  bool is_array() const { return value_->is_array(); }
  bool is_string() const { return value_->is_string(); }

  // nullopt when the member is missing or null.
  [[nodiscard]] std::optional<JsonField> try_member(const char* key) const {
    expect(value_->is_object(), "an object");
    const auto found = value_->find(key);
    if (found == value_->end() || found->is_null()) return std::nullopt;
    return JsonField(*found, path_ + "." + key);
  }
  JsonField member(const char* key) const {
    auto field = try_member(key);
    SPW_CHECK(field.has_value(), kInvalidArgument, "{}.{} is missing", path_, key);
    return *std::move(field);
  }

  size_t size() const {
    expect(value_->is_array(), "an array");
    return value_->size();
  }
  JsonField element(size_t index) const {
    SPW_CHECK(index < size(), kInvalidArgument, "{} has no element {}", path_, index);
    return JsonField((*value_)[index], path_ + "[" + std::to_string(index) + "]");
  }

  const std::string& string() const {
    expect(value_->is_string(), "a string");
    return value_->get_ref<const std::string&>();
  }
  bool boolean() const {
    expect(value_->is_boolean(), "true or false");
    return value_->get<bool>();
  }
  int64_t integer() const {
    expect(value_->is_number_integer(), "an integer");
    return value_->get<int64_t>();
  }
  bool boolean_or(const char* key, bool otherwise) const {
    const auto field = try_member(key);
    return field ? field->boolean() : otherwise;
  }
  std::string string_or(const char* key, std::string_view otherwise) const {
    const auto field = try_member(key);
    return field ? field->string() : std::string(otherwise);
  }

 private:
  void expect(bool right, const char* type) const {
    SPW_CHECK(right, kInvalidArgument, "{} must be {}", path_, type);
  }

  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace spillway
