// SPDX-License-Identifier: Apache-2.0
// Implements the typed getters of Metadata.
#include "base/error.h"
#include "base/printable.h"
#include "storage/metadata.h"

namespace spillway {
namespace {

constexpr std::string_view kInt = "an integer";
constexpr std::string_view kNumber = "a number";

}  // namespace

int64_t Metadata::get_int(std::string_view key) const { return to_int(entry(key, kInt)); }

std::optional<int64_t> Metadata::try_int(std::string_view key) const {
  const Entry* e = find_entry(key);
  if (e == nullptr) return std::nullopt;
  return to_int(*e);
}

int64_t Metadata::get_int(std::string_view key, int64_t min, int64_t max) const {
  const Entry& e = entry(key, kInt);
  const int64_t value = to_int(e);
  if (value < min || value > max) fail_type(e, fmt::format("{} from {} to {}", kInt, min, max));
  return value;
}

std::optional<int64_t> Metadata::try_int(std::string_view key, int64_t min, int64_t max) const {
  if (!contains(key)) return std::nullopt;
  return get_int(key, min, max);
}

double Metadata::get_double(std::string_view key) const { return to_double(entry(key, kNumber)); }

std::optional<double> Metadata::try_double(std::string_view key) const {
  const Entry* e = find_entry(key);
  if (e == nullptr) return std::nullopt;
  return to_double(*e);
}

double Metadata::get_double(std::string_view key, double min, double max) const {
  const Entry& e = entry(key, kNumber);
  const double value = to_double(e);
  if (value < min || value > max) fail_type(e, fmt::format("{} from {} to {}", kNumber, min, max));
  return value;
}

std::optional<double> Metadata::try_double(std::string_view key, double min, double max) const {
  if (!contains(key)) return std::nullopt;
  return get_double(key, min, max);
}

bool Metadata::get_bool(std::string_view key) const {
  const Entry& e = entry(key, "true or false");
  const bool* value = std::get_if<bool>(&e.value);
  if (value == nullptr) fail_type(e, "true or false");
  return *value;
}

std::optional<bool> Metadata::try_bool(std::string_view key) const {
  if (!contains(key)) return std::nullopt;
  return get_bool(key);
}

const std::string& Metadata::get_string(std::string_view key) const {
  const Entry& e = entry(key, "a string");
  const std::string* value = std::get_if<std::string>(&e.value);
  if (value == nullptr) fail_type(e, "a string");
  return *value;
}

const std::string* Metadata::try_string(std::string_view key) const {
  return contains(key) ? &get_string(key) : nullptr;
}

const StringArray& Metadata::get_string_array(std::string_view key) const {
  return to_strings(entry(key, "an array of strings"));
}

const StringArray* Metadata::try_string_array(std::string_view key) const {
  return contains(key) ? &get_string_array(key) : nullptr;
}

std::vector<int64_t> Metadata::get_int_array(std::string_view key) const {
  return to_ints(entry(key, "an array of integers"));
}

std::optional<std::vector<int64_t>> Metadata::try_int_array(std::string_view key) const {
  if (!contains(key)) return std::nullopt;
  return get_int_array(key);
}

std::vector<float> Metadata::get_float_array(std::string_view key) const {
  return to_floats(entry(key, "an array of numbers"));
}

std::optional<std::vector<float>> Metadata::try_float_array(std::string_view key) const {
  if (!contains(key)) return std::nullopt;
  return get_float_array(key);
}

}  // namespace spillway
