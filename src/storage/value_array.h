// SPDX-License-Identifier: Apache-2.0
// Stores arrays of metadata in no more memory than they take in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Stores strings in one block of text, with 4 bytes for each string besides its characters. A
// vocabulary has some 250,000 strings, and a hostile file may claim millions of empty ones.
class StringArray {
 public:
  static constexpr size_t kMaxBytes = 0xffffffff;

  StringArray() = default;
  explicit StringArray(const std::vector<std::string>& strings);

  size_t size() const { return ends_.size(); }
  bool empty() const { return ends_.empty(); }
  // The result is valid until the array is changed or moved.
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }

  void reserve(size_t strings, size_t bytes);
  // Throws kUnsupported if the text would exceed kMaxBytes.
  void push_back(std::string_view text);

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using pointer = const std::string_view*;
    using reference = std::string_view;

    Iterator() = default;
    Iterator(const StringArray& array, size_t i) : array_(&array), i_(i) {}
    std::string_view operator*() const { return (*array_)[i_]; }
    Iterator& operator++() {
      ++i_;
      return *this;
    }
    Iterator operator++(int) { return {*array_, i_++}; }
    bool operator==(const Iterator& other) const { return i_ == other.i_; }

   private:
    const StringArray* array_ = nullptr;
    size_t i_ = 0;
  };
  using const_iterator = Iterator;
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }

 private:
  std::string text_;
  std::vector<uint32_t> ends_;
};

enum class NumberType : uint8_t { kBool, kU8, kI8, kU16, kI16, kU32, kI32, kU64, kI64, kF32, kF64 };

size_t number_bytes(NumberType type);
std::string_view number_name(NumberType type);  // returns e.g. "u8"
inline bool is_float(NumberType type) {
  return type == NumberType::kF32 || type == NumberType::kF64;
}

// Stores numbers or bools as they are in a GGUF file, little endian.
struct NumberArray {
  NumberType type = NumberType::kI64;
  std::vector<std::byte> raw;

  size_t size() const { return raw.size() / number_bytes(type); }
  // Returns the bits of element `i`, sign-extended for signed types; floats are not converted.
  uint64_t bits(size_t i) const;
  double number(size_t i) const;
};

}  // namespace spillway
