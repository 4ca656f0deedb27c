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
  EXPECT_EQ(allocator.try_allocate(), 0);
  EXPECT_EQ(allocator.try_allocate(), 1);
  EXPECT_EQ(allocator.try_allocate(), 2);
  EXPECT_EQ(allocator.try_allocate(), std::nullopt);
  allocator.release(1);
  EXPECT_EQ(allocator.free(), 1);
  EXPECT_EQ(allocator.try_allocate(), 1);
}

TEST(BlockAllocatorTest, NoticesADoubleRelease) {
  BlockAllocator allocator(2);
  const BlockId id = allocator.try_allocate().value();
  allocator.release(id);
  EXPECT_THROW(allocator.release(id), Error);
  EXPECT_THROW(allocator.release(7), Error);
  EXPECT_THROW(allocator.release(-1), Error);
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
  // Each begins with one block and ends with four: two fit into the first pool in the end.
  std::vector<BlockTable> tables;
  for (int i = 0; i < 4; ++i) {
    tables.emplace_back(allocator, 60);
    ASSERT_TRUE(tables.back().try_reserve(16));
  }
  EXPECT_EQ(allocator.free(0), 8);
  EXPECT_EQ(allocator.unpromised(0), 2);
  EXPECT_EQ(allocator.free(1), 2);  // behind the first pool they are taken at once
  for (BlockTable& table : tables) ASSERT_TRUE(table.try_reserve(60));
  EXPECT_EQ(allocator.free(0), 2);
  EXPECT_EQ(allocator.unpromised(0), 2);
  // A short one still fits beside them; another goes where there is something free at all.
  BlockTable small(allocator, 32);
  ASSERT_TRUE(small.try_reserve(1));
  EXPECT_EQ(small.blocks().front() / 10, 0);
  BlockTable long_one(allocator, 160);
  ASSERT_TRUE(long_one.try_reserve(1));
  EXPECT_EQ(long_one.blocks().front() / 10, 1);
}

TEST(BlockTableTest, TakesItsPromiseAlong) {
  BlockAllocator allocator(8);
  {
    BlockTable table(allocator, 64);
    ASSERT_TRUE(table.try_reserve(20));
    EXPECT_EQ(allocator.unpromised(0), 4);
    BlockTable moved(std::move(table));
    EXPECT_EQ(allocator.unpromised(0), 4);
    BlockTable assigned(allocator);
    assigned = std::move(moved);
    EXPECT_EQ(allocator.unpromised(0), 4);
    // More than was expected is no promise.
    ASSERT_TRUE(assigned.try_reserve(80));
    EXPECT_EQ(allocator.unpromised(0), 3);
    assigned.clear();
    EXPECT_EQ(allocator.unpromised(0), 8);
    ASSERT_TRUE(assigned.try_reserve(1));
    EXPECT_EQ(allocator.unpromised(0), 4);
  }
  EXPECT_EQ(allocator.unpromised(0), 8);
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
  EXPECT_EQ(blocks.try_find(keys[2]), ids[1]);  // asked for, and left again
  blocks.release(ids[1]);
  EXPECT_EQ(blocks.try_allocate(), ids[0]);
  EXPECT_EQ(blocks.try_find(keys[1]), std::nullopt);
  EXPECT_EQ(blocks.try_allocate(), ids[2]);
  EXPECT_EQ(blocks.try_find(keys[2]), ids[1]);
  EXPECT_EQ(blocks.try_allocate(), std::nullopt) << "held";
}

// A chain is of use from its beginning on: its end goes first. What is taken lies together.
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
  EXPECT_EQ(other.blocks(), (std::vector<BlockId>{2, 3}));
  EXPECT_EQ(blocks.try_find(keys[2]), 1);
  EXPECT_EQ(blocks.try_find(keys[3]), std::nullopt);
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

}  // namespace
}  // namespace spillway
