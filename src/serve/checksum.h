// SPDX-License-Identifier: Apache-2.0
// Checksums of texts as hexadecimal digits: xxHash, which finds damage, not forgery.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace spillway {

uint64_t checksum64(std::string_view bytes);
std::string hex64(uint64_t value);                // 16 digits
std::string checksum128(std::string_view bytes);  // 32 digits

// The checksum of bytes that come in pieces. Not thread-safe.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void add(std::string_view bytes);
  // checksum128() of all so far.
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
