// SPDX-License-Identifier: Apache-2.0
// What a block of a KV cache is called.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway {

// One of all blocks of a cache, whichever memory they are in: a type of its own, so that it cannot
// be taken for what kernels and copies need, a number in the planes of one memory. That is
// KvCache::number_in(), which refuses a block of another.
enum class BlockId : int32_t {};

// Among all of the cache's: those of a pool follow those of the pool before.
constexpr int32_t number_of(BlockId id) { return static_cast<int32_t>(id); }

// So many that follow each other.
inline std::vector<BlockId> block_range(int64_t first, int64_t count) {
  std::vector<BlockId> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<BlockId>(first + i));
  return ids;
}

}  // namespace spillway
