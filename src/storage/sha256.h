// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), to check downloads against pinned sums.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace spillway {

// Not thread-safe. After digest() it may only be destroyed.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  std::array<uint8_t, 32> digest();

 private:
  void compress(const std::byte* blocks, size_t count);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> tail_{};
  size_t tail_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

// 64 lower-case hexadecimal digits. Throws as File does.
std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_file(const std::filesystem::path& path);

}  // namespace spillway
