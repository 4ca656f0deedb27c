// SPDX-License-Identifier: Apache-2.0
// Digests that tell texts or files apart: 128 bits of xxHash, which detect damage, not forgery.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace spillway {

std::string digest128(std::string_view bytes);  // 32 hexadecimal digits

// Computes the digest of bytes that come in pieces. Not thread-safe.
class Digest {
 public:
  Digest();
  ~Digest();

  void add(std::string_view bytes);
  // Returns digest128() of all bytes added so far.
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
