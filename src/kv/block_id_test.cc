// SPDX-License-Identifier: Apache-2.0
#include "kv/block_id.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <concepts>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "kv/kv_cache.h"
#include "kv/kv_store.h"

namespace spillway {
namespace {

// Whether a method of a KvCache can be called with these arguments, and whether a load can have a
// block of type Block.
template <auto kMethod, class... Args>
constexpr bool takes = std::is_invocable_v<decltype(kMethod), KvCache&, Args...>;
template <class Block>
concept CanBeLoaded = requires(Block block) {
  KvStore::Load{BlockKey{}, block};
};

TEST(BlockIdTest, ABlockOfAnotherMemoryDoesNotEvenCompile) {
  static_assert(takes<&KvCache::reload, DeviceBlock>);
  static_assert(!takes<&KvCache::reload, HostBlock>);
  static_assert(!takes<&KvCache::reload, DiskBlock>);
  static_assert(!takes<&KvCache::reload, BlockId>);
  static_assert(!takes<&KvCache::reload, int32_t>);
  static_assert(takes<&KvCache::copy_block, Device&, DeviceBlock, DeviceBlock>);
  static_assert(!takes<&KvCache::copy_block, Device&, DeviceBlock, HostBlock>);
  static_assert(!takes<&KvCache::copy_block, Device&, DiskBlock, DeviceBlock>);
  static_assert(takes<&KvCache::disk_id, int, DiskBlock>);
  static_assert(!takes<&KvCache::disk_id, int, DeviceBlock>);
  static_assert(CanBeLoaded<DeviceBlock> && !CanBeLoaded<HostBlock> && !CanBeLoaded<BlockId>);
  static_assert(!std::is_constructible_v<DeviceBlock, HostBlock>);
  static_assert(!std::is_constructible_v<DeviceBlock, BlockId>);
  static_assert(!std::equality_comparable_with<DeviceBlock, HostBlock>);
}

TEST(BlockIdTest, ABlockOfOneMemoryIsABlock) {
  static_assert(std::regular<BlockId> && std::totally_ordered<BlockId>);
  static_assert(std::regular<DeviceBlock> && std::totally_ordered<DeviceBlock>);
  static_assert(std::is_convertible_v<HostBlock, BlockId>);
  static_assert(!std::is_convertible_v<int32_t, DeviceBlock>);
  static_assert(!std::is_convertible_v<int32_t, BlockId>);
  EXPECT_EQ(BlockId(HostBlock{5}), (BlockId{Tier::kHost, 5}));
  EXPECT_EQ(BlockId(HostBlock{5}).in<Tier::kHost>(), HostBlock{5});
  EXPECT_NE(BlockId(HostBlock{5}), BlockId(DeviceBlock{5}));
}

TEST(BlockIdTest, MemoriesComeBeforeNumbers) {
  const std::vector<BlockId> sorted = {DeviceBlock{0}, DeviceBlock{9}, HostBlock{0},
                                       HostBlock{3},   DiskBlock{0},   DiskBlock{2}};
  std::vector<BlockId> blocks(sorted.rbegin(), sorted.rend());
  std::ranges::sort(blocks);
  EXPECT_EQ(blocks, sorted);
  EXPECT_EQ(std::unordered_set<BlockId>(sorted.begin(), sorted.end()).size(), sorted.size());
}

// A block id includes its memory: the same number in another memory's planes is a different block.
TEST(BlockIdTest, ABlockOfAnotherMemoryIsRefusedWhereItIsKnownOnlyThen) {
  const BlockId on_device = DeviceBlock{3}, in_host = HostBlock{3}, on_disk = DiskBlock{3};
  EXPECT_EQ(on_device.number_in(Tier::kDevice), 3);
  EXPECT_EQ(in_host.number_in(Tier::kHost), 3);
  EXPECT_EQ(on_disk.number_in(Tier::kDisk), 3);
  EXPECT_THROW(on_device.number_in(Tier::kHost), Error);
  EXPECT_THROW(in_host.number_in(Tier::kDevice), Error);
  EXPECT_THROW(on_disk.number_in(Tier::kDevice), Error);
  EXPECT_THROW(in_host.in<Tier::kDevice>(), Error);
  EXPECT_THROW(on_device.in<Tier::kDisk>(), Error);
}

}  // namespace
}  // namespace spillway
