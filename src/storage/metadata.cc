// SPDX-License-Identifier: Apache-2.0
#include "storage/metadata.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {
namespace {

constexpr size_t kShownElements = 4;
constexpr size_t kShownStringBytes = 60;

std::string in_quotes(std::string_view text, size_t max_bytes = kShownStringBytes) {
  std::string escaped;
  for (const char c : printable(text, max_bytes)) {
    if (c == '"') escaped += '\\';
    escaped += c;
  }
  return '"' + escaped + '"';
}

std::string describe_number(const NumberArray& array, size_t i) {
  if (array.type == NumberType::kBool) return array.bits(i) != 0 ? "true" : "false";
  if (is_float(array.type)) return fmt::format("{:.6g}", array.number(i));
  if (array.type == NumberType::kU64) return fmt::format("{}", array.bits(i));
  return fmt::format("{}", static_cast<int64_t>(array.bits(i)));
}

template <class Show>
std::string describe_array(size_t count, std::string_view what, Show show) {
  std::string text = fmt::format("[{} {}", count, what);
  for (size_t i = 0; i < count && i < kShownElements; ++i) {
    text += i == 0 ? ": " : ", ";
    text += show(i);
  }
  return text + (count > kShownElements ? ", ...]" : "]");
}

struct Describe {
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(uint64_t v) const { return fmt::format("{}", v); }
  std::string operator()(double v) const { return fmt::format("{:.7g}", v); }
  std::string operator()(const std::string& v) const { return in_quotes(v); }
  std::string operator()(const StringArray& v) const {
    return describe_array(v.size(), "strings", [&](size_t i) { return in_quotes(v[i], 24); });
  }
  std::string operator()(const NumberArray& v) const {
    return describe_array(v.size(), number_name(v.type),
                          [&](size_t i) { return describe_number(v, i); });
  }
  std::string operator()(const MixedArray& v) const {
    return fmt::format("[{} values of several types]", v.count);
  }
};

struct TypeName {
  std::string operator()(bool) const { return "the bool"; }
  std::string operator()(int64_t) const { return "the integer"; }
  std::string operator()(uint64_t) const { return "the integer"; }
  std::string operator()(double) const { return "the float"; }
  std::string operator()(const std::string&) const { return "the string"; }
  std::string operator()(const StringArray&) const { return "the array"; }
  std::string operator()(const NumberArray&) const { return "the array"; }
  std::string operator()(const MixedArray&) const { return "the array"; }
};

bool is_empty_array(const Value& value) {
  if (const auto* strings = std::get_if<StringArray>(&value)) return strings->empty();
  if (const auto* numbers = std::get_if<NumberArray>(&value)) return numbers->size() == 0;
  return false;
}

}  // namespace

std::string describe_value(const Value& value) { return std::visit(Describe{}, value); }

void Metadata::add(std::string key, Value value, std::optional<uint64_t> offset) {
  const std::string where = offset ? fmt::format(" at byte {}", *offset) : std::string();
  SPW_CHECK(!key.empty(), kInvalidArgument, "{}: empty key{}", source_, where);
  SPW_CHECK(key.size() <= kMaxKeyBytes, kInvalidArgument, "{}: key '{}'{} has {} bytes, over {}",
            source_, printable(key, 40), where, key.size(), kMaxKeyBytes);
  SPW_CHECK(entries_.size() < kMaxKeys, kInvalidArgument, "{}: more than {} keys", source_,
            kMaxKeys);
  const auto [it, inserted] = index_.emplace(key, static_cast<uint32_t>(entries_.size()));
  SPW_CHECK(inserted, kInvalidArgument, "{}: key '{}'{} is there twice", source_, printable(key),
            where);
  entries_.push_back({std::move(key), std::move(value), offset});
}

const Metadata::Entry* Metadata::find_entry(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &entries_[it->second];
}

const Value* Metadata::find(std::string_view key) const {
  const Entry* entry = find_entry(key);
  return entry == nullptr ? nullptr : &entry->value;
}

std::vector<std::string_view> Metadata::keys() const {
  std::vector<std::string_view> keys;
  keys.reserve(entries_.size());
  for (const Entry& entry : entries_) keys.push_back(entry.key);
  return keys;
}

std::string Metadata::describe(std::string_view key) const {
  const Value* value = find(key);
  return value == nullptr ? "missing" : describe_value(*value);
}

const Metadata::Entry& Metadata::entry(std::string_view key, std::string_view expected) const {
  const Entry* found = find_entry(key);
  SPW_CHECK(found != nullptr, kInvalidArgument, "{}: key '{}' is missing; expected {}", source_,
            printable(key), expected);
  return *found;
}

void Metadata::fail_type(const Entry& entry, std::string_view expected) const {
  const std::string where = entry.offset ? fmt::format(" at byte {}", *entry.offset) : "";
  fail(ErrorCode::kInvalidArgument, "{}: key '{}'{}: expected {}, found {} {}", source_,
       printable(entry.key), where, expected, std::visit(TypeName{}, entry.value),
       describe_value(entry.value));
}

int64_t Metadata::to_int(const Entry& entry) const {
  if (const auto* v = std::get_if<int64_t>(&entry.value)) return *v;
  const auto* v = std::get_if<uint64_t>(&entry.value);
  if (v == nullptr || *v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    fail_type(entry, "an integer below 2^63");
  return static_cast<int64_t>(*v);
}

double Metadata::to_double(const Entry& entry) const {
  if (const auto* v = std::get_if<int64_t>(&entry.value)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<uint64_t>(&entry.value)) return static_cast<double>(*v);
  const auto* v = std::get_if<double>(&entry.value);
  if (v == nullptr || !std::isfinite(*v)) fail_type(entry, "a finite number");
  return *v;
}

const StringArray& Metadata::to_strings(const Entry& entry) const {
  static const StringArray kNone;
  if (is_empty_array(entry.value)) return kNone;
  const auto* v = std::get_if<StringArray>(&entry.value);
  if (v == nullptr) fail_type(entry, "an array of strings");
  return *v;
}

std::vector<int64_t> Metadata::to_ints(const Entry& entry) const {
  if (is_empty_array(entry.value)) return {};
  const auto* v = std::get_if<NumberArray>(&entry.value);
  if (v == nullptr || is_float(v->type) || v->type == NumberType::kBool)
    fail_type(entry, "an array of integers");
  std::vector<int64_t> out(v->size());
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t bits = v->bits(i);
    if (v->type == NumberType::kU64 && bits > static_cast<uint64_t>(INT64_MAX))
      fail_type(entry, "an array of integers below 2^63");
    out[i] = static_cast<int64_t>(bits);
  }
  return out;
}

std::vector<float> Metadata::to_floats(const Entry& entry) const {
  if (is_empty_array(entry.value)) return {};
  const auto* v = std::get_if<NumberArray>(&entry.value);
  if (v == nullptr || v->type == NumberType::kBool) fail_type(entry, "an array of numbers");
  std::vector<float> out(v->size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(v->number(i));
  return out;
}

}  // namespace spillway
