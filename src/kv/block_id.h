// SPDX-License-Identifier: Apache-2.0
// The identifier of a block of a KV cache.
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

// Identifies one block of a cache. The memory that it is in and the group of layers that it belongs
// to (model/state_group.h) are part of the id. It says nothing about where the blocks before and
// after it in a table are. Kernels and copies need a number in the planes of one memory, which a
// block of another memory does not give them.
struct BlockId {
  constexpr BlockId() = default;
  constexpr BlockId(Tier memory, int32_t of_memory, int of_group = 0)
      : tier(memory), group(static_cast<uint8_t>(of_group)), number(of_memory) {}

  // A placeholder in a table for a block that its sequence released because no token reaches it any
  // more. The memory is the one that the block was in.
  static constexpr BlockId released(Tier memory, int of_group = 0) {
    return {memory, kReleased, of_group};
  }
  bool is_released() const { return number == kReleased; }

  Tier tier = Tier::kDevice;
  uint8_t group = 0;   // 0 in models whose layers all keep the same state
  int32_t number = 0;  // among the blocks of that memory and group, from 0 on

  // These throw kInternal for a block of another memory.
  int32_t number_in(Tier memory) const {
    SPW_ASSERT(tier == memory);
    return number;
  }
  template <Tier kMemory>
  BlockIn<kMemory> in() const {
    return BlockIn<kMemory>(number_in(kMemory), group);
  }

  friend constexpr auto operator<=>(const BlockId&, const BlockId&) = default;

 private:
  static constexpr int32_t kReleased = -1;
};
static_assert(sizeof(BlockId) == 8, "tables of these are walked in every step");

// A block that is known to be in one memory. Code that touches the bytes there takes this type, so
// a block of another memory does not compile.
template <Tier kMemory>
struct BlockIn {
  constexpr BlockIn() = default;
  constexpr explicit BlockIn(int32_t of_memory, int of_group = 0)
      : number(of_memory), group(static_cast<uint8_t>(of_group)) {}
  constexpr operator BlockId() const { return {kMemory, number, group}; }

  int32_t number = 0;
  uint8_t group = 0;

  friend constexpr auto operator<=>(const BlockIn&, const BlockIn&) = default;
};
using DeviceBlock = BlockIn<Tier::kDevice>;
using HostBlock = BlockIn<Tier::kHost>;
using DiskBlock = BlockIn<Tier::kDisk>;

// Returns `count` consecutive blocks of one memory and group.
inline std::vector<BlockId> block_range(int64_t first, int64_t count, Tier tier = Tier::kDevice,
                                        int group = 0) {
  std::vector<BlockId> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back({tier, static_cast<int32_t>(first + i), group});
  return ids;
}

}  // namespace spillway

template <>
struct std::hash<spillway::BlockId> {
  size_t operator()(const spillway::BlockId& id) const noexcept {
    return static_cast<size_t>(id.tier) << 40 | static_cast<size_t>(id.group) << 32 |
           static_cast<uint32_t>(id.number);
  }
};
template <spillway::Tier kMemory>
struct std::hash<spillway::BlockIn<kMemory>> {
  size_t operator()(const spillway::BlockIn<kMemory>& block) const noexcept {
    return static_cast<size_t>(block.group) << 32 | static_cast<uint32_t>(block.number);
  }
};
