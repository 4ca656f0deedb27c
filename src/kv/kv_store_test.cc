// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

#include "base/fault_points.h"
#include "base/test_scoped_folder.h"
#include "kv/kv_stores.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

constexpr KvGroupShape kShape{.layers = 3, .kv_heads = 2, .head_dim = 16, .type = KvType::kF16};
constexpr int32_t kBlocks = 8;

class KvStoreTest : public testing::TestWithParam<bool> {
 protected:
  KvStoreTest()
      : machine_(GetParam()),
        kv_(machine_.device(), kShape, kBlocks),
        folder_(std::filesystem::temp_directory_path()) {}
  ~KvStoreTest() override { disarm_faults(); }

  static BlockContents contents(uint64_t n) {
    return {.key = {n, 7},
            .parent = {n - 1, 7},
            .position = static_cast<int32_t>(n % 100 - 1) * kKvBlockTokens};
  }
  static BlockKey key(uint64_t n) { return contents(n).key; }

  // Fills a block with bytes that depend on `n` and on their position in the block.
  void fill(DeviceBlock block, uint64_t n) {
    std::vector<CopyPiece> pieces;
    std::vector<std::byte> bytes = bytes_of(n);
    kv_.add_pieces(block, bytes.data(), KvCache::Direction::kToDevice, pieces);
    machine_.device().compute().copy_to_device(pieces);
  }
  std::vector<std::byte> bytes_of(uint64_t n) const {
    std::vector<std::byte> bytes(static_cast<size_t>(kShape.block_bytes()));
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>((i * 31 + n * 17) >> (i % 3));
    return bytes;
  }
  bool has(DeviceBlock block, uint64_t n) {
    std::vector<CopyPiece> pieces;
    std::vector<std::byte> bytes(static_cast<size_t>(kShape.block_bytes()));
    kv_.add_pieces(block, bytes.data(), KvCache::Direction::kToHost, pieces);
    machine_.device().compute().copy_to_host(pieces);
    return bytes == bytes_of(n);
  }
  void put(KvStore& store, DeviceBlock block, uint64_t n) {
    const KvStore::Copy copy{contents(n), block};
    store.put({&copy, 1});
  }
  void load(KvStore& store, uint64_t n, DeviceBlock block) {
    const KvStore::Load load{key(n), block};
    store.load({&load, 1});
  }
  std::unique_ptr<KvStore> make(int32_t slots, const KvCosts& costs = {}) {
    return std::make_unique<KvStore>(kv_, *machine_.transfers, machine_.host,
                                     KvStore::Options{.slots = slots, .costs = costs});
  }
  std::unique_ptr<KvStore> make_lasting(int32_t slots, uint64_t budget = 1 << 24) {
    return std::make_unique<KvStore>(
        kv_, *machine_.transfers, machine_.host, KvStore::Options{.slots = slots},
        BlockFolder::try_open(machine_.queue,
                              {.dir = folder_.path(),
                               .block_bytes = static_cast<size_t>(kShape.block_bytes()),
                               .salt = "test",
                               .budget_bytes = budget}));
  }
  static void wait_until_fetched(KvStore& store, std::span<const BlockKey> keys) {
    for (const BlockKey& of : keys) {
      while (store.place_of(of) == KvStore::Place::kInFlight)
        store.wait_for_fetch(std::chrono::milliseconds(10));
    }
  }

  TestMachine machine_;
  KvCache kv_;
  ScopedFolder folder_;
};

TEST_P(KvStoreTest, WhatWasPutComesBackIntoAnyBlock) {
  auto store = make(16);
  for (uint64_t n = 1; n <= 3; ++n) {
    fill(DeviceBlock(static_cast<int32_t>(n)), n);
    put(*store, DeviceBlock(static_cast<int32_t>(n)), n);
  }
  EXPECT_FALSE(store->has(key(4)));
  // The pool's blocks are overwritten immediately.
  const std::vector<DeviceBlock> blocks = {DeviceBlock{1}, DeviceBlock{2}, DeviceBlock{3}};
  store->before_writing(blocks);
  for (const DeviceBlock block : blocks) fill(block, 99);
  const std::vector<KvStore::Load> loads = {
      {key(3), DeviceBlock{5}}, {key(1), DeviceBlock{1}}, {key(2), DeviceBlock{0}}};
  store->load(loads);
  EXPECT_TRUE(has(DeviceBlock{5}, 3));
  EXPECT_TRUE(has(DeviceBlock{1}, 1));
  EXPECT_TRUE(has(DeviceBlock{0}, 2));
  EXPECT_EQ(store->stats().to_host_bytes, 3U * static_cast<uint64_t>(kShape.block_bytes()));
  put(*store, DeviceBlock{5}, 3);
  EXPECT_EQ(store->stats().to_host_bytes, 3U * static_cast<uint64_t>(kShape.block_bytes()))
      << "what has a copy does not move";
}

TEST_P(KvStoreTest, CopiesThatFailTakeNoRoom) {
  if (machine_.device().host_visible()) GTEST_SKIP() << "the CPU's copies do not fail";
  auto store = make(8);
  fill(DeviceBlock{1}, 1);
  for (int i = 0; i < 20; ++i) {
    arm_fault("copy.device", 1, FaultKind::kEio);
    EXPECT_NO_THROW(put(*store, DeviceBlock{1}, 1)) << "no step waits for it";
    EXPECT_FALSE(store->has(key(1)));
  }
  disarm_faults();
  put(*store, DeviceBlock{1}, 1);
  EXPECT_TRUE(store->has(key(1)));
  for (int i = 0; i < 20; ++i) {
    arm_fault("copy.device", 1, FaultKind::kEio);
    EXPECT_THROW(load(*store, 1, DeviceBlock{2}), Error);
  }
  disarm_faults();
  load(*store, 1, DeviceBlock{2});
  EXPECT_TRUE(has(DeviceBlock{2}, 1));
  const KvStore::Copy copy{contents(2), DeviceBlock{2}};
  store->put({&copy, 1});
  store->drop(std::vector{key(1), key(2)});
  EXPECT_EQ(store->stats().refused, 0);
}

TEST_P(KvStoreTest, PartsOfBlocksThatAreComputedFasterAreNotStored) {
  const double block_bytes = static_cast<double>(kShape.block_bytes());
  // A block takes as long as 3.5 tokens of compute for both ways together.
  auto store = make(16, {.token_s = 1, .to_device = block_bytes / 1.75});
  KvStore::Copy copy{contents(1), DeviceBlock{1}};
  copy.contents.tokens = 3;
  store->put({&copy, 1});
  EXPECT_FALSE(store->has(key(1)));
  copy.contents.tokens = 4;
  store->put({&copy, 1});
  EXPECT_TRUE(store->has(key(1)));
}

TEST_P(KvStoreTest, MakesRoomFromTheEndOfChains) {
  auto store = make(4);
  const auto put_and_wait = [&](uint64_t n) {
    fill(DeviceBlock{0}, n);
    while (!store->has(key(n)))
      put(*store, DeviceBlock{0}, n);  // refused while loads still read the earlier blocks
    load(*store, n, DeviceBlock{7});   // copies are in order, so block n has arrived
    EXPECT_TRUE(has(DeviceBlock{7}, n));
  };
  for (uint64_t n = 1; n <= 4; ++n) put_and_wait(n);
  put_and_wait(101);
  for (uint64_t n = 1; n <= 3; ++n) EXPECT_TRUE(store->has(key(n))) << n;
  EXPECT_FALSE(store->has(key(4)));
  EXPECT_EQ(store->stats().host.evicted, 1);
  EXPECT_EQ(store->stats().host.blocks, 4);
}

TEST_P(KvStoreTest, WhatIsPinnedStays) {
  auto store = make(2);
  fill(DeviceBlock{0}, 1);
  put(*store, DeviceBlock{0}, 1);
  load(*store, 1, DeviceBlock{1});
  const std::vector<BlockKey> keys = {key(1), key(2)};
  EXPECT_EQ(store->fetch(keys), 1U) << "the second is nowhere";
  for (const uint64_t n : {101, 201, 301}) {
    fill(DeviceBlock{0}, n);
    put(*store, DeviceBlock{0}, n);
    EXPECT_TRUE(has(DeviceBlock{0}, n));
    const DeviceBlock block{};
    store->before_writing({&block, 1});
  }
  EXPECT_TRUE(store->has(key(1)));
  store->unpin(std::span(keys).first(1));
}

TEST_P(KvStoreTest, LoadingPaysWhereBlocksAreComputedMoreSlowly) {
  const auto bytes = static_cast<double>(kShape.block_bytes());
  // A token takes 1 s to compute; a block takes 8 s from host memory.
  auto slow = make(4, {.token_s = 1, .to_device = bytes / 8});
  auto slower = make(4, {.token_s = 1, .to_device = bytes / 20});
  auto deep = make(4, {.token_s = 1, .token_position_s = 0.01, .to_device = bytes / 20});
  const std::vector<BlockKey> keys = {key(1), key(2)};
  for (auto* const store : {&slow, &slower, &deep}) {
    put(**store, DeviceBlock{0}, 1);
    put(**store, DeviceBlock{1}, 2);
  }
  const auto pays = [&](KvStore& store, int64_t position, int64_t tokens = 2 * kKvBlockTokens) {
    return KvStores(&store).loading_pays({std::span(keys)}, position, tokens);
  };
  EXPECT_TRUE(pays(*slow, 0));
  EXPECT_FALSE(pays(*slower, 0));
  EXPECT_FALSE(pays(*deep, 0));
  EXPECT_TRUE(pays(*deep, 100)) << "there is more to attend to";
  EXPECT_FALSE(pays(*slow, 0, kKvBlockTokens)) << "the blocks of two groups bring 16 tokens";
}

TEST_P(KvStoreTest, BlocksOnDiskOutlastTheStore) {
  std::vector<BlockKey> keys;
  {
    auto store = make_lasting(4);
    for (uint64_t n = 1; n <= 12; ++n) {
      fill(DeviceBlock{0}, n);
      put(*store, DeviceBlock{0}, n);
      const DeviceBlock block{};
      store->before_writing({&block, 1});
      keys.push_back(key(n));
      while (store->stats().disk.blocks < static_cast<int64_t>(n)) std::this_thread::yield();
    }
    EXPECT_EQ(store->stats().refused, 0);
  }
  auto store = make_lasting(32);
  EXPECT_EQ(store->place_of(key(5)), KvStore::Place::kDisk);
  EXPECT_EQ(store->fetch(keys), 12U);
  wait_until_fetched(*store, keys);
  for (uint64_t n = 1; n <= 12; ++n) {
    load(*store, n, DeviceBlock{3});
    EXPECT_TRUE(has(DeviceBlock{3}, n)) << n;
  }
  store->unpin(keys);
  EXPECT_EQ(store->stats().damaged, 0);
  EXPECT_EQ(store->stats().disk.blocks, 12);
}

TEST_P(KvStoreTest, ADamagedBlockIsNowhere) {
  {
    auto store = make_lasting(8);
    for (uint64_t n = 1; n <= 3; ++n) {
      fill(DeviceBlock(static_cast<int32_t>(n)), n);
      put(*store, DeviceBlock(static_cast<int32_t>(n)), n);
    }
  }
  auto store = make_lasting(8);
  arm_fault("spill.flip", 2, FaultKind::kEio);
  const std::vector<BlockKey> keys = {key(1), key(2), key(3)};
  EXPECT_EQ(store->fetch(keys), 3U);
  wait_until_fetched(*store, keys);
  EXPECT_EQ(store->place_of(key(1)), KvStore::Place::kHost);
  EXPECT_EQ(store->place_of(key(2)), KvStore::Place::kNowhere);
  EXPECT_EQ(store->place_of(key(3)), KvStore::Place::kHost);
  EXPECT_EQ(store->stats().damaged, 1);
  store->unpin(keys);
}

TEST_P(KvStoreTest, OnlyBlocksOfFullGroupsNeedTheOneBefore) {
  for (const StateKind kind : {StateKind::kFull, StateKind::kWindow, StateKind::kRecurrent}) {
    const auto open = [&] {
      return std::make_unique<KvStore>(
          kv_, *machine_.transfers, machine_.host, KvStore::Options{.slots = 8, .rule = {kind, 32}},
          BlockFolder::try_open(machine_.queue,
                                {.dir = folder_.path(),
                                 .block_bytes = static_cast<size_t>(kShape.block_bytes()),
                                 .salt = kind == StateKind::kFull     ? "full"
                                         : kind == StateKind::kWindow ? "window"
                                                                      : "state",
                                 .budget_bytes = 1 << 24}));
    };
    {
      const auto store = open();
      fill(DeviceBlock{1}, 5);
      put(*store, DeviceBlock{1}, 5);
    }
    EXPECT_EQ(open()->has(key(5)), kind != StateKind::kFull);
  }
}

TEST_P(KvStoreTest, TheDiskMakesRoomFromTheEndOfChains) {
  const uint64_t each = KvStore::slot_bytes(kv_) + 2 * kIndexEntryBytes;
  {
    auto store = make_lasting(4, 5 * each);
    uint64_t written = 0;
    for (const uint64_t n : {1, 2, 3, 4, 5, 101, 102}) {
      fill(DeviceBlock{0}, n);
      put(*store, DeviceBlock{0}, n);
      const DeviceBlock block{};
      store->before_writing({&block, 1});
      written += KvStore::slot_bytes(kv_);
      while (store->stats().disk_written_bytes < written) std::this_thread::yield();
    }
    EXPECT_EQ(store->stats().disk.blocks, 5);
    EXPECT_EQ(store->stats().disk.evicted, 2);
    fill(DeviceBlock{0}, 7);
    put(*store, DeviceBlock{0}, 7);  // its parent is not stored
    while (store->stats().refused == 0) std::this_thread::yield();
  }
  auto store = make_lasting(4, 5 * each);
  EXPECT_EQ(store->stats().disk.blocks, 5);
  for (const uint64_t n : {1, 2, 3, 101, 102}) EXPECT_TRUE(store->has(key(n))) << n;
}

TEST_P(KvStoreTest, AFolderThatMustBecomeSmallerLosesTheBlocksOfLeastWorth) {
  const uint64_t each = KvStore::slot_bytes(kv_) + 2 * kIndexEntryBytes;
  {
    auto store = make_lasting(4);
    int64_t written = 0;
    for (const uint64_t n : {1, 2, 3, 4, 5, 101, 102}) {
      fill(DeviceBlock{0}, n);
      put(*store, DeviceBlock{0}, n);
      const DeviceBlock block{};
      store->before_writing({&block, 1});
      ++written;
      while (store->stats().disk.blocks < written) std::this_thread::yield();
    }
  }
  auto store = make_lasting(4, 4 * each);
  EXPECT_EQ(store->stats().disk.blocks, 4) << "before anything was done";
  EXPECT_EQ(store->stats().disk.evicted, 3);
  // Blocks are evicted from the ends of chains, the oldest first; the order of slots, in which 101
  // and 102 are last, does not matter.
  for (const uint64_t n : {1, 2, 101, 102}) EXPECT_TRUE(store->has(key(n))) << n;
  const std::vector<BlockKey> keys = {key(101), key(102)};
  EXPECT_EQ(store->fetch(keys), 2U);
  wait_until_fetched(*store, keys);
  load(*store, 102, DeviceBlock{3});
  EXPECT_TRUE(has(DeviceBlock{3}, 102));
  store->unpin(keys);
}

TEST_P(KvStoreTest, WhatIsDroppedIsGoneEverywhere) {
  const std::vector<BlockKey> keys = {key(1), key(2)};
  {
    auto store = make_lasting(16);
    fill(DeviceBlock{0}, 1);
    put(*store, DeviceBlock{0}, 1);
    while (store->stats().disk.blocks < 1) std::this_thread::yield();
    fill(DeviceBlock{1}, 2);
    put(*store, DeviceBlock{1}, 2);  // its copy is still under way
    store->drop(keys);
    EXPECT_FALSE(store->has(key(1)));
    EXPECT_FALSE(store->has(key(2)));
    fill(DeviceBlock{2}, 2);
    put(*store, DeviceBlock{2}, 2);
    load(*store, 2, DeviceBlock{3});
    EXPECT_TRUE(has(DeviceBlock{3}, 2));
    store->drop(keys);
  }
  EXPECT_EQ(make_lasting(16)->stats().disk.blocks, 0);
}

TEST_P(KvStoreTest, GoesOnWithoutADiskThatIsFull) {
  auto store = make_lasting(16);
  arm_fault("io.write", 1, FaultKind::kEnospc, 1000);
  for (uint64_t n = 1; n <= 6; ++n) {
    fill(DeviceBlock{0}, n);
    put(*store, DeviceBlock{0}, n);
    load(*store, n, DeviceBlock{1});
    EXPECT_TRUE(has(DeviceBlock{1}, n));
  }
  EXPECT_EQ(store->stats().disk.blocks, 0);
  disarm_faults();
}

INSTANTIATE_TEST_SUITE_P(Devices, KvStoreTest, testing::Bool(),
                         [](const auto& of) { return of.param ? "Accelerator" : "Cpu"; });

}  // namespace
}  // namespace spillway
