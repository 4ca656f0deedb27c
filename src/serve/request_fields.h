// SPDX-License-Identifier: Apache-2.0
// Takes the fields of a request's JSON objects one by one, with checks, and collects or refuses
// unknown ones.
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

// Whether unknown fields are ignored or refused.
enum class UnknownFields : uint8_t { kIgnore, kRefuse };

// Collects the names of a body's fields that have no effect. Not thread-safe.
class IgnoredFields {
 public:
  explicit IgnoredFields(UnknownFields policy) : policy_(policy) {}

  // `param` is the path of the field: "messages[2].mood". Throws ApiError(400) if unknown fields
  // are refused.
  void add(const std::string& param);
  // Returns each name once, without indices ("messages[].mood"), printable, in the order of the
  // body; at most kMostNames.
  std::vector<std::string> take() { return std::move(names_); }

  static constexpr size_t kMostNames = 32;

 private:
  UnknownFields policy_;
  std::vector<std::string> names_;
};

[[noreturn]] void refuse_field(const char* code, const std::string& param,
                               const std::string& message);
// Refuses with the message "'param' must be `wanted`".
[[noreturn]] void refuse_field_type(const std::string& param, const char* wanted);

// Returns whether the value is a number without a fraction: 2, or 2.0 as some languages write it.
bool is_whole_number(const nlohmann::ordered_json& value);
// Returns its value; nullopt if it is no whole number, or not exact in 64 bits.
[[nodiscard]] std::optional<int64_t> try_whole_number(const nlohmann::ordered_json& value);

// Takes the members of one JSON object; end() handles those that were not taken. Functions that
// take members throw ApiError(400), which names the field. Keeps references to its arguments.
class RequestFields {
 public:
  using json = nlohmann::ordered_json;

  // `path` is "" for the body, else the path of this object: "messages[2]".
  RequestFields(const json& object, std::string path, IgnoredFields& ignored);

  std::string param(std::string_view name) const;
  // Returns null if the member is missing or null.
  const json* try_take(std::string_view name);
  const json& take(std::string_view name);
  // Returns whether there is such a member, even if it is null.
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

  // Takes a member that has no effect, whatever its value.
  void skip(std::string_view name) { taken_.insert(std::string(name)); }
  // Must follow after all members are taken: members that were not taken and are not null are
  // ignored, or refused.
  void end();
  IgnoredFields& ignored() { return ignored_; }

 private:
  const json& object_;
  std::string path_;
  IgnoredFields& ignored_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace spillway
