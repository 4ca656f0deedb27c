// SPDX-License-Identifier: Apache-2.0
#include "kv/block_allocator.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

TEST(BlockAllocatorTest, GivesTheLowestFreeIdAndRefusesWhenFull) {
  BlockAllocator allocator(3);
  EXPECT_EQ(allocator.try_allocate(), DeviceBlock{0});
  EXPECT_EQ(allocator.try_allocate(), DeviceBlock{1});
  EXPECT_EQ(allocator.try_allocate(), DeviceBlock{2});
  EXPECT_EQ(allocator.try_allocate(), std::nullopt);
  allocator.release(DeviceBlock{1});
  EXPECT_EQ(allocator.free(), 1);
  EXPECT_EQ(allocator.try_allocate(), DeviceBlock{1});
}

TEST(BlockAllocatorTest, NoticesADoubleRelease) {
  BlockAllocator allocator(2);
  const BlockId id = allocator.try_allocate().value();
  allocator.release(id);
  EXPECT_THROW(allocator.release(id), Error);
  EXPECT_THROW(allocator.release(DeviceBlock{7}), Error);
  EXPECT_THROW(allocator.release(DeviceBlock{-1}), Error);
}

// Each memory numbers its blocks on its own.
TEST(BlockAllocatorTest, TheSameNumberIsAnotherBlockInEachMemory) {
  BlockAllocator allocator({2, 2, 2});
  for (const Tier pool : allocator.pools())
    EXPECT_EQ(allocator.try_allocate(pool), (BlockId{pool, 0}));
  allocator.hold(HostBlock{0});
  EXPECT_EQ(allocator.holders(DeviceBlock{0}), 1);
  EXPECT_EQ(allocator.holders(HostBlock{0}), 2);
  EXPECT_EQ(allocator.holders(DiskBlock{0}), 1);
  allocator.release(DiskBlock{0});
  EXPECT_EQ(allocator.free(Tier::kDevice), 1);
  EXPECT_EQ(allocator.free(Tier::kHost), 1);
  EXPECT_EQ(allocator.free(Tier::kDisk), 2);
  EXPECT_THROW(BlockAllocator({2, 2}).hold(DiskBlock{0}), Error) << "there is no such pool";
}

TEST(BlockTableTest, ReservesAllBlocksOrNone) {
  BlockAllocator allocator(4);
  BlockTable first(allocator), second(allocator);
  EXPECT_TRUE(first.try_reserve(17));
  EXPECT_EQ(first.blocks().size(), 2U);
  EXPECT_TRUE(first.try_reserve(32));
  EXPECT_EQ(first.blocks().size(), 2U);
  EXPECT_FALSE(second.try_reserve(33));
  EXPECT_EQ(allocator.free(), 2);
  EXPECT_TRUE(second.try_reserve(32));
}

TEST(BlockTableTest, GivesItsBlocksBackOnce) {
  BlockAllocator allocator(4);
  {
    BlockTable table(allocator);
    ASSERT_TRUE(table.try_reserve(64));
    BlockTable moved(std::move(table));
    EXPECT_EQ(static_cast<int64_t>(moved.blocks().size()), blocks_for_tokens(64));
    EXPECT_EQ(allocator.free(), 0);
  }
  EXPECT_EQ(allocator.free(), 4);
}

TEST(BlockTableTest, ChoosesAPoolWithRoomForWhatItWillBe) {
  BlockAllocator allocator(std::vector<int32_t>{10, 10});
  // Each sequence begins with one block and ends with four, so the first pool has room for
  // two in the end.
  std::vector<BlockTable> tables;
  for (int i = 0; i < 4; ++i) {
    tables.emplace_back(allocator, 60);
    ASSERT_TRUE(tables.back().try_reserve(16));
  }
  EXPECT_EQ(allocator.free(Tier::kDevice), 8);
  EXPECT_EQ(allocator.unpromised(Tier::kDevice), 2);
  // In later pools, all expected blocks are taken together.
  EXPECT_EQ(allocator.free(Tier::kHost), 2);
  for (BlockTable& table : tables) ASSERT_TRUE(table.try_reserve(60));
  EXPECT_EQ(allocator.free(Tier::kDevice), 2);
  EXPECT_EQ(allocator.unpromised(Tier::kDevice), 2);
  // A short sequence still fits beside them; a long one goes to the pool with most free blocks.
  BlockTable small(allocator, 32);
  ASSERT_TRUE(small.try_reserve(1));
  EXPECT_EQ(small.blocks().front().tier, Tier::kDevice);
  BlockTable long_one(allocator, 160);
  ASSERT_TRUE(long_one.try_reserve(1));
  EXPECT_EQ(long_one.blocks().front().tier, Tier::kHost);
}

TEST(BlockTableTest, TakesItsPromiseAlong) {
  BlockAllocator allocator(8);
  {
    BlockTable table(allocator, 64);
    ASSERT_TRUE(table.try_reserve(20));
    EXPECT_EQ(allocator.unpromised(Tier::kDevice), 4);
    BlockTable moved(std::move(table));
    EXPECT_EQ(allocator.unpromised(Tier::kDevice), 4);
    BlockTable assigned(allocator);
    assigned = std::move(moved);
    EXPECT_EQ(allocator.unpromised(Tier::kDevice), 4);
    // Blocks beyond the expected ones are not counted as promised.
    ASSERT_TRUE(assigned.try_reserve(80));
    EXPECT_EQ(allocator.unpromised(Tier::kDevice), 3);
    assigned.clear();
    EXPECT_EQ(allocator.unpromised(Tier::kDevice), 8);
    ASSERT_TRUE(assigned.try_reserve(1));
    EXPECT_EQ(allocator.unpromised(Tier::kDevice), 4);
  }
  EXPECT_EQ(allocator.unpromised(Tier::kDevice), 8);
}

TEST(BlockAllocatorTest, ABlockIsFreeWhenItsLastHolderIsGone) {
  BlockAllocator blocks(2);
  const BlockId id = blocks.try_allocate().value();
  const BlockKey key = first_key("a");
  EXPECT_EQ(blocks.try_find(key), std::nullopt);
  blocks.keep(id, key);
  EXPECT_EQ(blocks.try_find(key), id);
  blocks.release(id);
  EXPECT_EQ(blocks.free(), 1);
  blocks.release(id);
  EXPECT_EQ(blocks.free(), 2);
  EXPECT_EQ(blocks.try_find(key), id) << "what it has is still there";
  EXPECT_EQ(blocks.free(), 1);
  blocks.release(id);
  EXPECT_THROW(blocks.release(id), Error);
}

TEST(BlockAllocatorTest, WhatWasLeftLongestAgoGoesFirst) {
  BlockAllocator blocks(3);
  std::vector<BlockKey> keys{first_key("")};
  std::vector<BlockId> ids;
  for (int32_t i = 0; i < 3; ++i) {
    keys.push_back(next_key(keys.back(), std::vector<int32_t>{i}));
    ids.push_back(blocks.try_allocate().value());
    blocks.keep(ids.back(), keys.back());
  }
  for (const BlockId id : {ids[1], ids[0], ids[2]}) blocks.release(id);
  EXPECT_EQ(blocks.free(), 3);
  EXPECT_EQ(blocks.try_find(keys[2]), ids[1]);  // found by a request and released again
  blocks.release(ids[1]);
  EXPECT_EQ(blocks.try_allocate(), ids[0]);
  EXPECT_EQ(blocks.try_find(keys[1]), std::nullopt);
  EXPECT_EQ(blocks.try_allocate(), ids[2]);
  EXPECT_EQ(blocks.try_find(keys[2]), ids[1]);
  EXPECT_EQ(blocks.try_allocate(), std::nullopt) << "held";
}

// A chain is useful from its beginning on, so its end is evicted first. Blocks that are taken
// lie together.
TEST(BlockAllocatorTest, ATablesLastBlocksGoFirst) {
  BlockAllocator blocks(4);
  std::vector<BlockKey> keys{first_key("")};
  {
    BlockTable table(blocks);
    ASSERT_TRUE(table.try_reserve(4 * kKvBlockTokens));
    for (int32_t i = 0; i < 4; ++i) {
      keys.push_back(next_key(keys.back(), std::vector<int32_t>{i}));
      blocks.keep(table.blocks()[static_cast<size_t>(i)], keys.back());
    }
  }
  BlockTable other(blocks);
  ASSERT_TRUE(other.try_reserve(2 * kKvBlockTokens));
  EXPECT_EQ(other.blocks(), block_range(2, 2));
  EXPECT_EQ(blocks.try_find(keys[2]), DeviceBlock{1});
  EXPECT_EQ(blocks.try_find(keys[3]), std::nullopt);
}

std::vector<int> pools_of(const BlockAllocator& blocks, const BlockTable& table) {
  std::vector<int> counts(blocks.pools().size());
  Tier last = Tier::kDevice;
  for (const BlockId id : table.blocks()) {
    EXPECT_GE(id.tier, last) << "back to a pool before";
    last = id.tier;
    ++counts[index_of(id.tier)];
  }
  return counts;
}

TEST(BlockTableTest, ASequenceThatNoPoolHoldsGoesOnInTheNext) {
  BlockAllocator blocks({40, 64, 33}, /*span_blocks=*/16);
  EXPECT_EQ(blocks.longest(), (32 + 64 + 33) * kKvBlockTokens);
  BlockTable table(blocks, 100 * kKvBlockTokens);
  ASSERT_TRUE(table.try_reserve(3 * kKvBlockTokens));
  EXPECT_EQ(pools_of(blocks, table), (std::vector{16, 0, 0}));
  ASSERT_TRUE(table.try_reserve(33 * kKvBlockTokens));
  EXPECT_EQ(pools_of(blocks, table), (std::vector{32, 16, 0})) << "whole runs of the first";
  ASSERT_TRUE(table.try_reserve(129 * kKvBlockTokens));
  EXPECT_EQ(pools_of(blocks, table), (std::vector{32, 64, 33}));
  EXPECT_FALSE(table.try_reserve(130 * kKvBlockTokens));
  EXPECT_EQ(table.blocks().size(), 129u) << "all or nothing";
  table.clear();
  EXPECT_EQ(blocks.free(), blocks.total());
  for (const Tier pool : blocks.pools()) EXPECT_EQ(blocks.unpromised(pool), blocks.total(pool));
}

TEST(BlockTableTest, AtTheBeginningItTakesAllThatItNeeds) {
  BlockAllocator blocks({40, 64, 33}, 16);
  BlockTable table(blocks);
  ASSERT_TRUE(table.try_reserve(120 * kKvBlockTokens));
  EXPECT_EQ(pools_of(blocks, table), (std::vector{32, 64, 32}));
}

TEST(BlockTableTest, OneThatAPoolHoldsStaysWhole) {
  BlockAllocator blocks({16, 64}, 16);
  BlockTable small(blocks, 10 * kKvBlockTokens), large(blocks, 64 * kKvBlockTokens);
  ASSERT_TRUE(small.try_reserve(1));
  ASSERT_TRUE(large.try_reserve(20 * kKvBlockTokens));
  EXPECT_EQ(pools_of(blocks, small), (std::vector{1, 0}));
  EXPECT_EQ(pools_of(blocks, large), (std::vector{0, 64}));
}

TEST(BlockTableTest, WithoutSpanningItIsRefused) {
  BlockAllocator blocks({40, 64});
  EXPECT_EQ(blocks.longest(), 64 * kKvBlockTokens);
  BlockTable table(blocks, 100 * kKvBlockTokens);
  EXPECT_FALSE(table.try_reserve(100 * kKvBlockTokens));
}

// The sequence has become longer than expected.
TEST(BlockTableTest, OneThatIsLongerThanExpectedSpansAsWell) {
  BlockAllocator blocks({40, 64}, 16);
  BlockTable table(blocks, 50 * kKvBlockTokens);
  const auto plan = table.try_plan(90 * kKvBlockTokens, blocks.rooms());
  ASSERT_TRUE(plan);
  table.begin_in(plan->pool);
  table.take(*plan);
  EXPECT_EQ(pools_of(blocks, table), (std::vector{32, 64}));
  EXPECT_EQ(table.promised(), 0);
  EXPECT_TRUE(table.spans(0));
  table.clear();
  for (const Tier pool : blocks.pools()) EXPECT_EQ(blocks.unpromised(pool), blocks.total(pool));
}

// A shared prefix may end in the middle of a run: the table continues there, and changes pools only
// at the end of the run.
TEST(BlockTableTest, SpansBehindWhatItShares) {
  BlockAllocator blocks({40, 64}, 16);
  std::vector<BlockId> shared;
  for (int i = 0; i < 5; ++i) shared.push_back(blocks.try_allocate(Tier::kDevice).value());
  BlockTable table(blocks, 90 * kKvBlockTokens);
  const auto plan = table.try_plan(50 * kKvBlockTokens, blocks.rooms(), {shared});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->pool, Tier::kDevice);
  EXPECT_EQ(plan->blocks[0], 27) << "up to a whole run";
  EXPECT_EQ(plan->beyond[0][index_of(Tier::kHost)], 32);
  table.begin_in(plan->pool, {shared});
  table.take(*plan);
  EXPECT_EQ(pools_of(blocks, table), (std::vector{32, 32}));
}

TEST(BlockTableTest, SharesBlocksOfSeveralPoolsWhereItSpans) {
  BlockAllocator blocks({4, 8}, /*span_blocks=*/2);
  BlockTable first(blocks, 11 * kKvBlockTokens);
  ASSERT_TRUE(first.try_reserve(8 * kKvBlockTokens));
  const std::vector<BlockId> shared(first.blocks().begin(), first.blocks().begin() + 7);
  EXPECT_EQ(shared.front().tier, Tier::kDevice);
  EXPECT_EQ(shared.back().tier, Tier::kHost);
  const std::span<const BlockId> all(shared);
  EXPECT_TRUE(blocks.can_follow(all.first(4), shared[4], /*spans=*/true));
  EXPECT_FALSE(blocks.can_follow(all.first(4), shared[4], /*spans=*/false));
  EXPECT_FALSE(blocks.can_follow(all.first(3), shared[4], /*spans=*/true)) << "not a whole run";
  EXPECT_FALSE(blocks.can_follow(all.first(6), shared[0], /*spans=*/true)) << "never back";
  for (const BlockId id : shared) blocks.hold(id);
  BlockTable second(blocks, 11 * kKvBlockTokens);
  second.begin_in(Tier::kHost, {shared});
  ASSERT_TRUE(second.try_reserve(9 * kKvBlockTokens));
  EXPECT_EQ(second.blocks().back().tier, Tier::kHost);
  EXPECT_TRUE(second.uses(Tier::kDevice) && second.uses(Tier::kHost));
}

TEST(BlockAllocatorTest, WhatIsForgottenIsNotFound) {
  BlockAllocator blocks(2);
  const BlockKey a = first_key("a"), b = first_key("b");
  const BlockId first = blocks.try_allocate().value(), second = blocks.try_allocate().value();
  blocks.keep(first, a);
  blocks.keep(second, b);
  blocks.release(second);
  blocks.forget_all();
  EXPECT_EQ(blocks.try_find(a), std::nullopt);
  EXPECT_EQ(blocks.try_find(b), std::nullopt);
  EXPECT_EQ(blocks.free(), 1);
  blocks.release(first);
  EXPECT_EQ(blocks.free(), 2);
}

TEST(BlockAllocatorTest, KeysAreOfAllThatWasBefore) {
  const std::vector<int32_t> one{1, 2, 3}, other{1, 2, 4};
  const BlockKey start = first_key("model f16");
  EXPECT_EQ(next_key(start, one), next_key(start, one));
  EXPECT_FALSE(next_key(start, one) == next_key(start, other));
  EXPECT_FALSE(next_key(next_key(start, one), one) == next_key(next_key(start, other), one));
  EXPECT_FALSE(next_key(first_key("model int8"), one) == next_key(start, one));
}

TEST(BlockAllocatorTest, APoolGrowsWithoutRenamingBlocks) {
  BlockAllocator allocator({10, 5});
  allocator.resize(Tier::kDevice, 6);
  EXPECT_EQ(allocator.total(Tier::kDevice), 6);
  EXPECT_EQ(allocator.free(Tier::kDevice), 6);
  EXPECT_EQ(allocator.total(), 11);
  EXPECT_THROW(allocator.holders(DeviceBlock{6}), Error) << "not yet one of its own";
  EXPECT_EQ(allocator.try_allocate(Tier::kHost), HostBlock{0});
  for (const BlockId id : block_range(0, 6)) EXPECT_EQ(allocator.try_allocate(), id);
  EXPECT_FALSE(allocator.try_allocate());
  allocator.resize(Tier::kDevice, 10);
  EXPECT_EQ(allocator.free(Tier::kDevice), 4);
  EXPECT_EQ(allocator.try_allocate(), DeviceBlock{6});
  EXPECT_EQ(allocator.try_allocate(), DeviceBlock{7});
  EXPECT_TRUE(allocator.resize(Tier::kDevice, 8).empty());
  EXPECT_FALSE(allocator.try_allocate());
}

TEST(BlockAllocatorTest, WhatIsHeldBehindThePoolsEndGoesOnUnderOtherIds) {
  BlockAllocator allocator({8, 5});
  std::vector<BlockId> evicted;
  allocator.observe_evictions([&](BlockId id, const BlockContents&) { evicted.push_back(id); });
  const auto key_of = [](int n) { return BlockKey{static_cast<uint64_t>(n), 1}; };
  for (const BlockId id : block_range(0, 8)) {
    ASSERT_EQ(allocator.try_allocate(), id);
    if (id.number != 5) allocator.keep(id, key_of(id.number));
  }
  allocator.hold(DeviceBlock{7});  // now it has two holders
  for (const int free : {1, 2, 6}) allocator.release(DeviceBlock{free});
  const std::vector<BlockAllocator::Move> moves = allocator.resize(Tier::kDevice, 5);
  EXPECT_EQ(evicted, (std::vector<BlockId>{DeviceBlock{6}, DeviceBlock{1}, DeviceBlock{2}}))
      << "blocks without holders: behind the end, and then what was left longest ago";
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].from, DeviceBlock{5});
  EXPECT_EQ(moves[0].to, DeviceBlock{1});
  EXPECT_EQ(moves[1].from, DeviceBlock{7});
  EXPECT_EQ(moves[1].to, DeviceBlock{2});
  EXPECT_EQ(allocator.holders(DeviceBlock{2}), 2);
  EXPECT_EQ(allocator.try_peek(key_of(7)), DeviceBlock{2}) << "it is found where it is now";
  EXPECT_FALSE(allocator.try_peek(key_of(6)));
  EXPECT_EQ(allocator.free(Tier::kDevice), 0);
  EXPECT_EQ(allocator.free(Tier::kHost), 5) << "another pool";
  allocator.release(DeviceBlock{2});
  allocator.release(DeviceBlock{2});
  EXPECT_EQ(allocator.try_find(key_of(7)), DeviceBlock{2}) << "kept, without holders";
}

}  // namespace
}  // namespace spillway
