// SPDX-License-Identifier: Apache-2.0
#include "storage/value_array.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace spillway {
namespace {

static_assert(std::endian::native == std::endian::little, "model files are read as they lie");

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

StringArray::StringArray(const std::vector<std::string>& strings) {
  for (const std::string& s : strings) push_back(s);
}

void StringArray::reserve(size_t strings, size_t bytes) {
  ends_.reserve(strings);
  text_.reserve(bytes);
}

void StringArray::push_back(std::string_view text) {
  SPW_CHECK(text.size() <= kMaxBytes - text_.size(), kUnsupported,
            "an array of strings has more than {} bytes", kMaxBytes);
  text_ += text;
  ends_.push_back(static_cast<uint32_t>(text_.size()));
}

size_t number_bytes(NumberType type) {
  switch (type) {
    case NumberType::kBool:
    case NumberType::kU8:
    case NumberType::kI8:
      return 1;
    case NumberType::kU16:
    case NumberType::kI16:
      return 2;
    case NumberType::kU32:
    case NumberType::kI32:
    case NumberType::kF32:
      return 4;
    case NumberType::kU64:
    case NumberType::kI64:
    case NumberType::kF64:
      break;
  }
  return 8;
}

std::string_view number_name(NumberType type) {
  constexpr std::string_view kNames[] = {"bool", "u8",  "i8",  "u16", "i16", "u32",
                                         "i32",  "u64", "i64", "f32", "f64"};
  return kNames[static_cast<size_t>(type)];
}

uint64_t NumberArray::bits(size_t i) const {
  SPW_ASSERT(i < size());
  const std::byte* at = raw.data() + i * number_bytes(type);
  switch (type) {
    case NumberType::kBool:
    case NumberType::kU8:
      return load<uint8_t>(at);
    case NumberType::kI8:
      return static_cast<uint64_t>(int64_t{load<int8_t>(at)});
    case NumberType::kU16:
      return load<uint16_t>(at);
    case NumberType::kI16:
      return static_cast<uint64_t>(int64_t{load<int16_t>(at)});
    case NumberType::kU32:
    case NumberType::kF32:
      return load<uint32_t>(at);
    case NumberType::kI32:
      return static_cast<uint64_t>(int64_t{load<int32_t>(at)});
    case NumberType::kU64:
    case NumberType::kI64:
    case NumberType::kF64:
      break;
  }
  return load<uint64_t>(at);
}

double NumberArray::number(size_t i) const {
  const uint64_t b = bits(i);
  switch (type) {
    case NumberType::kF32:
      return double{std::bit_cast<float>(static_cast<uint32_t>(b))};
    case NumberType::kF64:
      return std::bit_cast<double>(b);
    case NumberType::kI8:
    case NumberType::kI16:
    case NumberType::kI32:
    case NumberType::kI64:
      return static_cast<double>(static_cast<int64_t>(b));
    default:
      return static_cast<double>(b);
  }
}

}  // namespace spillway
