// SPDX-License-Identifier: Apache-2.0
#include "kv/block_key.h"

#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/error.h"
#include "tensor/kv_format.h"

namespace spillway {
namespace {

BlockKey key_of(const XXH128_hash_t& hash) { return {hash.low64, hash.high64}; }

}  // namespace

BlockKey first_key(std::string_view salt) { return key_of(XXH3_128bits(salt.data(), salt.size())); }

BlockKey salted_key(const BlockKey& first, std::string_view salt) {
  // The seed differs from that of all other keys, so no tokens lead to a salted key.
  constexpr uint64_t kSeed = 0x53616c7465644b56;
  std::string bytes(reinterpret_cast<const char*>(&first), sizeof(first));
  bytes += salt;
  return key_of(XXH3_128bits_withSeed(bytes.data(), bytes.size(), kSeed));
}

BlockKey group_key(const BlockKey& chain, int group) {
  if (group == 0) return chain;
  constexpr uint64_t kSeed = 0x47726f75704b5600;
  return key_of(XXH3_128bits_withSeed(&chain, sizeof(chain), kSeed + static_cast<uint64_t>(group)));
}

BlockKey next_key(const BlockKey& before, std::span<const int32_t> tokens) {
  // The previous key is hashed as bytes before the tokens, because a seed has only 64 bits.
  std::array<std::byte, sizeof(BlockKey) + kKvBlockTokens * sizeof(int32_t)> bytes;
  SPW_ASSERT(tokens.size_bytes() + sizeof(before) <= bytes.size());
  std::memcpy(bytes.data(), &before, sizeof(before));
  std::memcpy(bytes.data() + sizeof(before), tokens.data(), tokens.size_bytes());
  return key_of(XXH3_128bits(bytes.data(), sizeof(before) + tokens.size_bytes()));
}

}  // namespace spillway
