// SPDX-License-Identifier: Apache-2.0
// What tells one text or file from another: 128 bits of xxHash, which finds damage, not forgery.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace spillway {

std::string digest128(std::string_view bytes);  // 32 hexadecimal digits

// The digest of bytes that come in pieces. Not thread-safe.
class Digest {
 public:
  Digest();
  ~Digest();

  void add(std::string_view bytes);
  // digest128() of all so far.
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
