// SPDX-License-Identifier: Apache-2.0
// What a block of a KV cache is called.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/error.h"
#include "base/tier.h"

namespace spillway {

template <Tier kMemory>
struct BlockIn;

// One of a cache's blocks, whichever memory it is in: that is part of its name, and says nothing
// about where the blocks before and behind it in a table are. Kernels and copies need a number in
// the planes of one memory, which is not to be had for a block of another.
struct BlockId {
  Tier tier = Tier::kDevice;
  int32_t number = 0;  // among the blocks of that memory, from 0 on

  // These throw kInternal for a block of another memory.
  int32_t number_in(Tier memory) const {
    SPW_ASSERT(tier == memory);
    return number;
  }
  template <Tier kMemory>
  BlockIn<kMemory> in() const {
    return BlockIn<kMemory>(number_in(kMemory));
  }

  friend constexpr auto operator<=>(const BlockId&, const BlockId&) = default;
};
static_assert(sizeof(BlockId) == 8, "tables of these are walked in every step");

// A block that is known to be in one memory: what touches the bytes there takes these, and no block
// of another memory can be given to it.
template <Tier kMemory>
struct BlockIn {
  constexpr BlockIn() = default;
  constexpr explicit BlockIn(int32_t of_memory) : number(of_memory) {}
  constexpr operator BlockId() const { return {kMemory, number}; }

  int32_t number = 0;

  friend constexpr auto operator<=>(const BlockIn&, const BlockIn&) = default;
};
using DeviceBlock = BlockIn<Tier::kDevice>;
using HostBlock = BlockIn<Tier::kHost>;
using DiskBlock = BlockIn<Tier::kDisk>;

// So many of one memory that follow each other.
inline std::vector<BlockId> block_range(int64_t first, int64_t count, Tier tier = Tier::kDevice) {
  std::vector<BlockId> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back({tier, static_cast<int32_t>(first + i)});
  return ids;
}

}  // namespace spillway

template <>
struct std::hash<spillway::BlockId> {
  size_t operator()(const spillway::BlockId& id) const noexcept {
    return static_cast<size_t>(id.tier) << 32 | static_cast<uint32_t>(id.number);
  }
};
template <spillway::Tier kMemory>
struct std::hash<spillway::BlockIn<kMemory>> {
  size_t operator()(const spillway::BlockIn<kMemory>& block) const noexcept {
    return static_cast<uint32_t>(block.number);
  }
};
