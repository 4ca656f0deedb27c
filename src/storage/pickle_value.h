// SPDX-License-Identifier: Apache-2.0
// Holds what a pickle puts on its stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spillway {

// A value in 8 bytes. Texts are places in the pickle, tuples are places in a list of their values.
class PickleValue {
 public:
  enum class Kind : uint8_t {
    kMark,
    kNone,
    kBool,
    kInt,
    kText,
    kTuple,
    kDict,
    kGlobal,
    kStorage,  // its tuple: "storage", type, key, device, number of elements
    kTensor,   // its tuple: storage, offset, shape, strides, whether it has a gradient, hooks
  };

  static constexpr size_t kStorageFields = 5, kTensorFields = 6, kParameterFields = 3;
  static constexpr int64_t kMaxInt = (int64_t{1} << 55) - 1;

  PickleValue(Kind kind, uint64_t payload) : bits_(payload << 8 | static_cast<uint8_t>(kind)) {}
  // `value` is in [-kMaxInt, kMaxInt].
  static PickleValue of_int(int64_t value) { return {Kind::kInt, static_cast<uint64_t>(value)}; }
  // Both are below 2^28.
  static PickleValue of_text(uint64_t begin, uint64_t bytes) {
    return {Kind::kText, begin << 28 | bytes};
  }
  static PickleValue of_tuple(uint64_t begin, uint64_t count) {
    return {Kind::kTuple, begin << 8 | count};
  }

  Kind kind() const { return static_cast<Kind>(bits_ & 0xff); }
  bool is(Kind kind) const { return this->kind() == kind; }
  uint64_t payload() const { return bits_ >> 8; }
  int64_t number() const { return static_cast<int64_t>(bits_) >> 8; }
  uint64_t text_begin() const { return payload() >> 28; }
  uint64_t text_bytes() const { return payload() & ((uint64_t{1} << 28) - 1); }
  uint64_t tuple_begin() const { return payload() >> 8; }
  uint64_t tuple_count() const { return payload() & 0xff; }

 private:
  uint64_t bits_;
};

// Names a kind in messages.
constexpr std::string_view describe_pickle_kind(PickleValue::Kind kind) {
  using Kind = PickleValue::Kind;
  switch (kind) {
    case Kind::kMark:
      return "a mark";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a bool";
    case Kind::kInt:
      return "a number";
    case Kind::kText:
      return "a text";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kDict:
      return "a dictionary";
    case Kind::kGlobal:
      return "a class";
    case Kind::kStorage:
      return "a storage";
    case Kind::kTensor:
      return "a tensor";
  }
  return "";
}

}  // namespace spillway
