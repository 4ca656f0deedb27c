// SPDX-License-Identifier: Apache-2.0
// Stores typed keys and values: GGUF metadata, and config.json flattened to dotted paths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "storage/value_array.h"

namespace spillway {

// An array whose elements have different types or are arrays themselves; its contents are also
// flattened to key.0, key.1, ... Only its size can be read.
struct MixedArray {
  size_t count = 0;
};

using Value = std::variant<bool, int64_t, uint64_t, double, std::string, StringArray, NumberArray,
                           MixedArray>;

// Keeps keys in file order. Reading is thread-safe. Every getter throws kInvalidArgument for a
// value of the wrong type, naming source, key, and the expected and the actual type. x() also
// throws for a missing key, where try_x() returns nullopt or nullptr.
class Metadata {
 public:
  static constexpr size_t kMaxKeys = 65536;
  static constexpr size_t kMaxKeyBytes = 256;

  Metadata() = default;
  // `source` is the file name used in messages.
  explicit Metadata(std::string source) : source_(std::move(source)) {}

  const std::string& source() const { return source_; }
  size_t size() const { return entries_.size(); }
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  const Value* find(std::string_view key) const;
  // Returns the keys in file order.
  std::vector<std::string_view> keys() const;

  // Return integers of any width. A bool or a float is a wrong type, and so is a value above int64.
  int64_t get_int(std::string_view key) const;
  std::optional<int64_t> try_int(std::string_view key) const;
  // These also require the value to be within [min, max].
  int64_t get_int(std::string_view key, int64_t min, int64_t max) const;
  std::optional<int64_t> try_int(std::string_view key, int64_t min, int64_t max) const;

  // Return floats and integers; infinities and NaN are refused.
  double get_double(std::string_view key) const;
  std::optional<double> try_double(std::string_view key) const;
  double get_double(std::string_view key, double min, double max) const;
  std::optional<double> try_double(std::string_view key, double min, double max) const;

  bool get_bool(std::string_view key) const;
  std::optional<bool> try_bool(std::string_view key) const;

  const std::string& get_string(std::string_view key) const;
  const std::string* try_string(std::string_view key) const;

  // An empty array is accepted as an array of any type.
  const StringArray& get_string_array(std::string_view key) const;
  const StringArray* try_string_array(std::string_view key) const;
  std::vector<int64_t> get_int_array(std::string_view key) const;
  std::optional<std::vector<int64_t>> try_int_array(std::string_view key) const;
  std::vector<float> get_float_array(std::string_view key) const;  // accepts integers, too
  std::optional<std::vector<float>> try_float_array(std::string_view key) const;

  // Describes the value in a few words on one line: `"llama"`, `32`, `[151936 strings: "!", "\"",
  // ...]`, or "missing" if there is no such key.
  std::string describe(std::string_view key) const;

  // Called by readers. `offset` is the value's position in the source, for messages. Throws
  // kInvalidArgument for an empty, overlong or repeated key, and for more than kMaxKeys keys.
  void add(std::string key, Value value, std::optional<uint64_t> offset = std::nullopt);

 private:
  struct Entry {
    std::string key;
    Value value;
    std::optional<uint64_t> offset;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };

  const Entry* find_entry(std::string_view key) const;
  const Entry& entry(std::string_view key, std::string_view expected) const;
  [[noreturn]] void fail_type(const Entry& entry, std::string_view expected) const;
  int64_t to_int(const Entry& entry) const;
  double to_double(const Entry& entry) const;
  const StringArray& to_strings(const Entry& entry) const;
  std::vector<int64_t> to_ints(const Entry& entry) const;
  std::vector<float> to_floats(const Entry& entry) const;

  std::string source_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> index_;
};

// Describes a value as Metadata::describe() does.
std::string describe_value(const Value& value);

}  // namespace spillway
