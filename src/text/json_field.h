// SPDX-License-Identifier: Apache-2.0
// Reads a JSON document so that every error message names the field. It is meant for the .cc files
// of this folder only.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/json_document.h"

namespace spillway {

// A value and the path that leads to it, for error messages. Refers to the document, which must
// outlive it and the strings it returns. A wrong type throws Error(kInvalidArgument).
class JsonField {
 public:
  JsonField(JsonValue value, std::string path) : value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  JsonValue value() const { return value_; }
  bool is_array() const { return value_.is_array(); }
  bool is_string() const { return value_.is_string(); }

  // Returns nullopt if the member is missing or null.
  [[nodiscard]] std::optional<JsonField> try_member(std::string_view key) const {
    expect(value_.is_object(), "an object");
    const auto found = value_.try_member(key);
    if (!found || found->is_null()) return std::nullopt;
    return JsonField(*found, fmt::format("{}.{}", path_, key));
  }
  JsonField member(std::string_view key) const {
    auto field = try_member(key);
    SPW_CHECK(field.has_value(), kInvalidArgument, "{}.{} is missing", path_, key);
    return *std::move(field);
  }

  size_t size() const {
    expect(value_.is_array(), "an array");
    return value_.size();
  }
  // Returns an element by walking from the first, so it is meant for small indices.
  JsonField element(size_t index) const {
    SPW_CHECK(index < size(), kInvalidArgument, "{} has no element {}", path_, index);
    return JsonField(value_.element(index), element_path(index));
  }
  // Calls fn(const JsonField&) for each element.
  template <class Fn>
  void for_each_element(Fn&& fn) const {
    expect(value_.is_array(), "an array");
    size_t index = 0;
    value_.for_each_element(
        [&](JsonValue element) { fn(JsonField(element, element_path(index++))); });
  }

  std::string_view string() const {
    expect(value_.is_string(), "a string");
    return value_.string();
  }
  bool boolean() const {
    expect(value_.is_boolean(), "true or false");
    return value_.is_true();
  }
  int64_t integer() const {
    expect(value_.is_integer(), "an integer");
    return value_.integer();
  }
  bool boolean_or(std::string_view key, bool otherwise) const {
    const auto field = try_member(key);
    return field ? field->boolean() : otherwise;
  }
  std::string string_or(std::string_view key, std::string_view otherwise) const {
    const auto field = try_member(key);
    return std::string(field ? field->string() : otherwise);
  }

 private:
  std::string element_path(size_t index) const { return path_ + "[" + std::to_string(index) + "]"; }
  void expect(bool right, const char* type) const {
    SPW_CHECK(right, kInvalidArgument, "{} must be {}", path_, type);
  }

  JsonValue value_;
  std::string path_;
};

}  // namespace spillway
