// SPDX-License-Identifier: Apache-2.0
// The interface through which the readers parse bytes, from a file or from memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace spillway {

// Not thread-safe unless the implementation says so.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Returns one printable line for messages, usually the file name.
  virtual const std::string& label() const = 0;
  virtual uint64_t size() const = 0;
  // Fills `out` from `offset`; throws kIo if the range is not inside [0, size()).
  virtual void read_exact(uint64_t offset, std::span<std::byte> out) const = 0;
};

// A source that views memory, which must outlive it. For tests and fuzzing.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string label, std::span<const std::byte> bytes)
      : label_(std::move(label)), bytes_(bytes) {}
  const std::string& label() const override { return label_; }
  uint64_t size() const override { return bytes_.size(); }
  void read_exact(uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::string label_;
  std::span<const std::byte> bytes_;
};

}  // namespace spillway
