// SPDX-License-Identifier: Apache-2.0
#include "kv/block_allocator.h"

#include <gtest/gtest.h>

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
    EXPECT_EQ(moved.capacity_tokens(), 64);
    EXPECT_EQ(allocator.free(), 0);
  }
  EXPECT_EQ(allocator.free(), 4);
}

}  // namespace
}  // namespace spillway
