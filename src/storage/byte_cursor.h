// SPDX-License-Identifier: Apache-2.0
// Reads fields one after another from a source, never past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "storage/byte_source.h"

namespace spillway {

// Buffers a part of the source. Every read is checked against the source's size before memory is
// allocated for it. Errors are kInvalidArgument and name source, context, field and offset. Not
// thread-safe.
class ByteCursor {
 public:
  explicit ByteCursor(const ByteSource& source) : source_(source) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return source_.size() - position_; }
  const ByteSource& source() const { return source_; }
  // Sets what is being read, for messages: "tensor 7". Names in it must be printable.
  void set_context(std::string context) { context_ = std::move(context); }

  // Reads a little-endian number.
  template <class T>
  requires std::is_arithmetic_v<T> T read(std::string_view field) {
    std::byte raw[sizeof(T)];
    read_bytes(raw, field);
    T value;
    std::memcpy(&value, raw, sizeof(T));
    return value;
  }
  void read_bytes(std::span<std::byte> out, std::string_view field);
  // Reads a 64-bit length, then that many bytes.
  std::string read_string(std::string_view field, uint64_t max_bytes);
  // Reads only the length, and checks it against the bytes that remain.
  uint64_t read_string_length(std::string_view field, uint64_t max_bytes);
  // Throws unless `bytes` remain.
  void require(uint64_t bytes, std::string_view field) const;
  void skip(uint64_t bytes, std::string_view field);
  void seek(uint64_t position);

  // Returns the start of a message: "model.gguf: tensor 7: " or "model.gguf: ".
  std::string prefix() const;

 private:
  static constexpr size_t kWindowBytes = size_t{64} << 10;

  const ByteSource& source_;
  std::string context_;
  uint64_t position_ = 0;
  std::vector<std::byte> window_;
  uint64_t window_start_ = 0;
};

}  // namespace spillway
