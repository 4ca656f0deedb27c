// SPDX-License-Identifier: Apache-2.0
// The fields of a request's JSON objects: taken one by one with checks, and what happens to those
// that are left.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

// What happens to fields that are not known.
enum class UnknownFields : uint8_t { kIgnore, kRefuse };

// The names of a body's fields that have no effect. Not thread-safe.
class IgnoredFields {
 public:
  explicit IgnoredFields(UnknownFields policy) : policy_(policy) {}

  // `param` leads to the field: "messages[2].mood". Throws ApiError(400) where unknown fields are
  // refused.
  void add(const std::string& param);
  // Each name once, without indices ("messages[].mood"), printable, in the order of the body; at
  // most kMostNames.
  std::vector<std::string> take() { return std::move(names_); }

  static constexpr size_t kMostNames = 32;

 private:
  UnknownFields policy_;
  std::vector<std::string> names_;
};

[[noreturn]] void refuse_field(const char* code, const std::string& param,
                               const std::string& message);
// "'param' must be `wanted`"
[[noreturn]] void refuse_field_type(const std::string& param, const char* wanted);

// Whether the value is a number without a fraction: 2, or 2.0 as some languages write it.
bool is_whole_number(const nlohmann::ordered_json& value);
// Its value; none where it is no whole number, or one that not even 64 bits hold exactly.
[[nodiscard]] std::optional<int64_t> try_whole_number(const nlohmann::ordered_json& value);

// The members of one JSON object. Each is taken once; end() deals with those that were not. All
// that take throw ApiError(400), which names the field. Keeps references to all it is given.
class RequestFields {
 public:
  using json = nlohmann::ordered_json;

  // `path` is "" for the body, or what leads to this object: "messages[2]".
  RequestFields(const json& object, std::string path, IgnoredFields& ignored);

  std::string param(std::string_view name) const;
  // Null where the member is missing or null.
  const json* try_take(std::string_view name);
  const json& take(std::string_view name);
  // Whether there is such a member, even if it is null.
  bool has(std::string_view name) const;

  std::string string(std::string_view name) { return as_string(take(name), param(name)); }
  template <class T>
  void integer_into(std::string_view name, int64_t low, int64_t high, T& out) {
    if (const json* value = try_take(name))
      out = static_cast<T>(as_integer(*value, param(name), low, high));
  }
  void number_into(std::string_view name, double low, double high, float& out);
  void boolean_into(std::string_view name, bool& out);

  static std::string as_string(const json& value, const std::string& param);
  static int64_t as_integer(const json& value, const std::string& param, int64_t low, int64_t high);
  static float as_number(const json& value, const std::string& param, double low, double high);

  // This member changes nothing, whatever its value.
  void skip(std::string_view name) { taken_.insert(std::string(name)); }
  // Every member was looked at: what is left and not null is ignored, or refused.
  void end();
  IgnoredFields& ignored() { return ignored_; }

 private:
  const json& object_;
  std::string path_;
  IgnoredFields& ignored_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace spillway
