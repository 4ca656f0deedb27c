// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv_swap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/fault_points.h"
#include "storage/aligned_buffer.h"
#include "storage/test_folder.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

constexpr KvGroupShape kShape{.layers = 2, .kv_heads = 2, .head_dim = 8, .type = KvType::kF16};
constexpr int32_t kBlocks = 6;         // of the cache, in one tier
constexpr int32_t kStagingBlocks = 4;  // of the largest group
constexpr AttentionParams kDense{.heads = 2};

// The tier where the pages live. Without an accelerator that is the disk, since nothing is swapped
// from host memory.
struct SwapCase {
  Tier tier;
  bool has_accelerator;
  bool overlap;
};

// Blocks have known bytes, which depend on layer, block and K or V.
class KvSwapTest : public testing::TestWithParam<SwapCase> {
 protected:
  KvSwapTest()
      : machine_(GetParam().has_accelerator),
        kv_(machine_.device(), machine_.host, kShape,
            {.device_blocks = 1,
             .host_blocks = on_disk() ? 0 : kBlocks,
             .disk_blocks = on_disk() ? kBlocks : 0,
             .queue = &machine_.queue,
             .disk_dir = folder_.path()}),
        swap_(*machine_.transfers, machine_.host, kShape, kStagingBlocks, GetParam().overlap) {
    for (int layer = 0; layer < kShape.layers; ++layer) {
      for (int32_t block = 0; block < kBlocks; ++block) write_home(layer, block, block);
    }
  }
  void TearDown() override { disarm_faults(); }

  static bool on_disk() { return GetParam().tier == Tier::kDisk; }
  static size_t block_bytes() {
    return static_cast<size_t>(kShape.block_bytes() / 2 / kShape.layers);
  }
  static std::vector<std::byte> bytes_of(int layer, int seed, bool value) {
    std::vector<std::byte> bytes(block_bytes());
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(i * 3 + static_cast<size_t>(seed * 17 + layer * 71) +
                                        (value ? 128 : 0));
    return bytes;
  }

  // Writes a block to where it lives.
  void write_home(int layer, int32_t block, int seed) {
    AlignedBuffer buffer(on_disk() ? kv_.disk()->stride() : 2 * block_bytes());
    std::memset(buffer.data(), 0, buffer.size());
    const auto k = bytes_of(layer, seed, false), v = bytes_of(layer, seed, true);
    std::ranges::copy(k, buffer.data());
    std::ranges::copy(v, buffer.data() + block_bytes());
    if (on_disk()) {
      const uint32_t id = kv_.disk_id(layer, DiskBlock{block});
      kv_.disk()->write({&id, 1}, buffer.data());
      return;
    }
    const KvLayerView home = kv_.host_layer(layer);
    std::ranges::copy(k, home.k + block * home.block_bytes());
    std::ranges::copy(v, home.v + block * home.block_bytes());
  }
  void expect_home(int layer, int32_t block, int seed) {
    AlignedBuffer buffer(on_disk() ? kv_.disk()->stride() : 2 * block_bytes());
    if (on_disk()) {
      const uint32_t id = kv_.disk_id(layer, DiskBlock{block});
      kv_.disk()->read({&id, 1}, buffer.data());
    } else {
      const KvLayerView home = kv_.host_layer(layer);
      std::memcpy(buffer.data(), home.k + block * home.block_bytes(), block_bytes());
      std::memcpy(buffer.data() + block_bytes(), home.v + block * home.block_bytes(),
                  block_bytes());
    }
    EXPECT_TRUE(
        std::ranges::equal(buffer.span().first(block_bytes()), bytes_of(layer, seed, false)))
        << "K of block " << block << " at home";
    EXPECT_TRUE(std::ranges::equal(buffer.span().subspan(block_bytes(), block_bytes()),
                                   bytes_of(layer, seed, true)))
        << "V of block " << block << " at home";
  }

  // The bytes of a block in staging, as ops that are queued now see and change them.
  static std::span<std::byte> staged(const KvLayerView& pages, int32_t block, bool value) {
    return {(value ? pages.v : pages.k) + block * pages.block_bytes(), block_bytes()};
  }
  static void expect_staged(const KvLayerView& pages, int32_t block, int layer, int seed) {
    EXPECT_TRUE(std::ranges::equal(staged(pages, block, false), bytes_of(layer, seed, false)))
        << "K of staging block " << block;
    EXPECT_TRUE(std::ranges::equal(staged(pages, block, true), bytes_of(layer, seed, true)))
        << "V of staging block " << block;
  }
  static void write_staged(const KvLayerView& pages, int32_t block, int layer, int seed) {
    std::ranges::copy(bytes_of(layer, seed, false), staged(pages, block, false).data());
    std::ranges::copy(bytes_of(layer, seed, true), staged(pages, block, true).data());
  }

  // Pairs of a block's number in its tier and its number in staging.
  using Moves = std::vector<std::pair<int32_t, int32_t>>;
  static SwapGroup group_of(const Moves& loads, const Moves& stores) {
    SwapGroup group;
    group.tier = GetParam().tier;
    for (const auto& [home, staging] : loads) group.loads.push_back({{group.tier, home}, staging});
    for (const auto& [home, staging] : stores)
      group.stores.push_back({{group.tier, home}, staging});
    return group;
  }
  KvLayerView begin(int layer, const SwapGroup& group, const AttentionParams& params = kDense) {
    return swap_.begin(kv_, layer, group, params, stalls_);
  }
  void end(int layer, const SwapGroup& group) { swap_.end(kv_, layer, group, stalls_); }
  // Waits until what has been ended is back in its tier.
  void drain() {
    swap_.synchronize();
    const auto stream = machine_.device().make_stream();
    swap_.wait_for_stores(*stream);
    stream->synchronize();
  }

  TempFolder folder_;
  TestMachine machine_;
  KvCache kv_;
  KvSwap swap_;
  StallClock stalls_{machine_.device()};
};

TEST_P(KvSwapTest, PagesComeInAndWhatChangedGoesBack) {
  for (int layer = 0; layer < kShape.layers; ++layer) {
    // Blocks 2 and 3 are contiguous on both sides, 3 and 4 only in their tier.
    const SwapGroup group = group_of({{2, 0}, {3, 1}, {4, 3}, {0, 2}}, {{3, 1}, {0, 2}});
    swap_.load(kv_, layer, group);
    EXPECT_EQ(swap_.loaded(), 1);
    const KvLayerView pages = begin(layer, group);
    EXPECT_EQ(pages.layer, layer);
    EXPECT_EQ(pages.home_v, nullptr);
    for (const BlockMove& move : group.loads)
      expect_staged(pages, move.staging, layer, move.home.number);
    for (int32_t block = 0; block < kStagingBlocks; ++block)
      write_staged(pages, block, layer, 40 + block);
    end(layer, group);
    EXPECT_EQ(swap_.loaded(), 0);
    drain();
    const int expected[kBlocks] = {42, 1, 2, 41, 4, 5};
    for (int32_t block = 0; block < kBlocks; ++block) expect_home(layer, block, expected[block]);
    if (layer == 0) expect_home(1, 3, 3);
  }
}

// A buffer that was just ended is filled again immediately. Its stores must be done by then.
TEST_P(KvSwapTest, WhatGoesBackLeavesBeforeTheNextComes) {
  const auto group = [](int item) {
    return group_of({{item % kBlocks, 0}}, {{item % kBlocks, 0}});
  };
  const auto seed = [](int item) { return item < kBlocks ? item : 100 + item - kBlocks; };
  constexpr int kItems = 4 * kBlocks;
  std::vector<SwapGroup> groups;
  for (int item = 0; item < kItems; ++item) groups.push_back(group(item));
  int loaded = 0;
  for (int item = 0; item < kItems; ++item) {
    for (; loaded < std::min(kItems, item + kKvStagingBuffers); ++loaded)
      swap_.load(kv_, 0, groups[static_cast<size_t>(loaded)]);
    const KvLayerView pages = begin(0, groups[static_cast<size_t>(item)]);
    expect_staged(pages, 0, 0, seed(item));
    write_staged(pages, 0, 0, seed(item + kBlocks));
    end(0, groups[static_cast<size_t>(item)]);
  }
  drain();
  for (int32_t block = 0; block < kBlocks; ++block) expect_home(0, block, seed(kItems + block));
}

// A new block has no content that could be loaded, but is stored.
TEST_P(KvSwapTest, WhatIsNewOnlyGoesBack) {
  const SwapGroup group = group_of({}, {{5, 0}});
  swap_.load(kv_, 1, group);
  write_staged(begin(1, group), 0, 1, 50);
  end(1, group);
  drain();
  expect_home(1, 5, 50);
  expect_home(1, 4, 4);
}

TEST_P(KvSwapTest, TheNextGroupArrivesBesideTheOneInUse) {
  const SwapGroup first = group_of({{0, 0}, {1, 1}}, {{0, 0}}),
                  second = group_of({{4, 0}, {5, 1}}, {{5, 1}}), third = group_of({{2, 0}}, {});
  swap_.load(kv_, 0, first);
  swap_.load(kv_, 0, second);
  EXPECT_EQ(swap_.loaded(), kKvStagingBuffers);
  EXPECT_THROW(swap_.load(kv_, 0, third), Error) << "there is no room for a third";
  const KvLayerView pages = begin(0, first);
  expect_staged(pages, 0, 0, 0);
  expect_staged(pages, 1, 0, 1);
  write_staged(pages, 0, 0, 30);
  write_staged(pages, 1, 0, 31);
  end(0, first);
  swap_.load(kv_, 0, third);  // in the buffer of the first
  const KvLayerView next = begin(0, second);
  EXPECT_NE(next.k, pages.k);
  expect_staged(next, 0, 0, 4);
  expect_staged(next, 1, 0, 5);
  write_staged(next, 1, 0, 35);
  end(0, second);
  expect_staged(begin(0, third), 0, 0, 2);
  end(0, third);
  drain();
  const int expected[kBlocks] = {30, 1, 2, 3, 4, 35};
  for (int32_t block = 0; block < kBlocks; ++block) expect_home(0, block, expected[block]);
}

// If a prompt is split over several groups, the blocks that one group stores are loaded by the
// next.
TEST_P(KvSwapTest, AGroupFindsWhatTheOneBeforeItHasWritten) {
  int seed = 3;
  for (int i = 0; i < 6; ++i) {
    const SwapGroup group = group_of({{3, i % kStagingBlocks}}, {{3, i % kStagingBlocks}});
    swap_.load(kv_, 0, group);
    const KvLayerView pages = begin(0, group);
    expect_staged(pages, i % kStagingBlocks, 0, seed);
    write_staged(pages, i % kStagingBlocks, 0, seed = 60 + i);
    end(0, group);
  }
  drain();
  expect_home(0, 3, seed);
}

class KvSwapInTurnTest : public KvSwapTest {};
TEST_P(KvSwapInTurnTest, WithoutOverlapItIsDoneOnReturn) {
  const SwapGroup group = group_of({{1, 0}}, {{1, 0}});
  swap_.load(kv_, 0, group);
  write_staged(begin(0, group), 0, 0, 70);
  end(0, group);
  expect_home(0, 1, 70);
}

TEST_P(KvSwapTest, CountsWhatItMoves) {
  const SwapGroup group = group_of({{0, 0}, {1, 1}, {4, 2}}, {{4, 2}});
  swap_.load(kv_, 0, group);
  begin(0, group);
  end(0, group);
  drain();
  const KvSwap::Stats stats = swap_.take_stats();
  EXPECT_EQ(stats.to_device_bytes, 3 * 2 * block_bytes());
  EXPECT_EQ(stats.to_host_bytes, 2 * block_bytes());
  EXPECT_EQ(stats.disk_read_bytes, on_disk() ? 3 * kv_.disk()->stride() : 0);
  EXPECT_EQ(stats.disk_written_bytes, on_disk() ? kv_.disk()->stride() : 0);
  EXPECT_EQ(stats.v_read_bytes, 0u);
}

class KvSwapFromHostTest : public KvSwapTest {};
// For rows that attend to a share of their positions, V of full blocks is read in host memory.
TEST_P(KvSwapFromHostTest, OfSomeBlocksOnlyKeysMove) {
  SwapGroup group = group_of({{2, 2}}, {{2, 2}});
  group.key_loads = {{HostBlock{0}, 0}, {HostBlock{1}, 1}};
  const std::vector<int32_t> table = {0, 1, 2}, home = {0, 1};
  group.spans = {{.first_row = 0,
                  .rows = 1,
                  .start = 40,
                  .block_table = table,
                  .home = home,
                  .generates = true}};
  swap_.load(kv_, 1, group);
  const AttentionParams params{.heads = 2, .top_k = 0.25F};
  const KvLayerView pages = begin(1, group, params);
  expect_staged(pages, 2, 1, 2);
  for (const int32_t block : {0, 1}) {
    EXPECT_TRUE(std::ranges::equal(staged(pages, block, false), bytes_of(1, block, false)));
    EXPECT_TRUE(std::ranges::all_of(staged(pages, block, true),
                                    [](std::byte b) { return b == std::byte{0xff}; }))
        << "V of block " << block << " moved";
  }
  EXPECT_EQ(pages.home_v, kv_.host_layer(1).v);
  EXPECT_EQ(pages.home_blocks, kBlocks);
  end(1, group);
  drain();
  const KvSwap::Stats stats = swap_.take_stats();
  EXPECT_EQ(stats.to_device_bytes, (2 + 2) * block_bytes());
  EXPECT_GT(stats.v_read_bytes, 0u);
  for (int32_t block = 0; block < kBlocks; ++block) expect_home(1, block, block);
}

class KvSwapFromDiskTest : public KvSwapTest {};
TEST_P(KvSwapFromDiskTest, DamageOnDiskEndsTheStepAndNotTheNext) {
  for (const char* point : {"spill.flip", "io.read", "io.write"}) {
    SCOPED_TRACE(point);
    const SwapGroup group = group_of({{1, 0}}, {{1, 0}});
    arm_fault(point, 1, FaultKind::kEio);
    try {
      swap_.load(kv_, 0, group);
      write_staged(begin(0, group), 0, 0, 80);
      end(0, group);
      swap_.synchronize();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(),
                std::string_view(point) == "io.write" ? ErrorCode::kIo : ErrorCode::kCorrupt);
    }
    disarm_faults();
    swap_.reset();
    EXPECT_EQ(swap_.loaded(), 0);
    write_home(0, 1, 1);
    swap_.load(kv_, 0, group);
    expect_staged(begin(0, group), 0, 0, 1);
    end(0, group);
    EXPECT_NO_THROW(swap_.synchronize());
  }
}

// A step that ends early leaves items that are loaded but not ended.
TEST_P(KvSwapTest, ResetForgetsWhatWasLoaded) {
  const SwapGroup group = group_of({{1, 0}}, {{1, 0}}), other = group_of({{5, 3}}, {{5, 3}});
  swap_.load(kv_, 0, group);
  swap_.load(kv_, 0, group);
  begin(0, group);
  swap_.reset();
  EXPECT_EQ(swap_.loaded(), 0);
  swap_.load(kv_, 0, other);
  expect_staged(begin(0, other), 3, 0, 5);
  end(0, other);
  drain();
  expect_home(0, 1, 1);
}

TEST_P(KvSwapTest, TakesWhatItSaysItNeeds) {
  EXPECT_EQ(machine_.used(MemoryTag::kStaging),
            static_cast<uint64_t>(kKvStagingBuffers * kStagingBlocks * 2 * block_bytes()));
}

constexpr SwapCase kHost{Tier::kHost, true, true}, kHostInTurn{Tier::kHost, true, false},
    kDisk{Tier::kDisk, true, true}, kDiskInTurn{Tier::kDisk, true, false},
    kDiskAlone{Tier::kDisk, false, true}, kDiskAloneInTurn{Tier::kDisk, false, false};
std::string name_of(const testing::TestParamInfo<SwapCase>& test) {
  return std::string(test.param.tier == Tier::kHost ? "host" : "disk") +
         (test.param.has_accelerator ? "" : "_without_accelerator") +
         (test.param.overlap ? "" : "_in_turn");
}
INSTANTIATE_TEST_SUITE_P(Tiers, KvSwapTest,
                         testing::Values(kHost, kHostInTurn, kDisk, kDiskInTurn, kDiskAlone,
                                         kDiskAloneInTurn),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Tiers, KvSwapInTurnTest,
                         testing::Values(kHostInTurn, kDiskInTurn, kDiskAloneInTurn), name_of);
INSTANTIATE_TEST_SUITE_P(Tiers, KvSwapFromHostTest, testing::Values(kHost, kHostInTurn), name_of);
INSTANTIATE_TEST_SUITE_P(Tiers, KvSwapFromDiskTest,
                         testing::Values(kDisk, kDiskInTurn, kDiskAlone, kDiskAloneInTurn),
                         name_of);

// Each plane's part of a block is copied from and to its own place, also if the planes differ in
// size.
TEST(KvSwapPlanesTest, PlanesMayDiffer) {
  KvGroupShape differ{.layers = 1, .kv_heads = 2, .head_dim = 16, .type = KvType::kF16};
  differ.values = KvPlaneShape{1, 24, KvType::kInt8};
  KvGroupShape latent{.layers = 1, .kv_heads = 1, .head_dim = 64, .type = KvType::kF16};
  latent.values = KvPlaneShape{};
  for (const KvGroupShape& shape : {differ, latent}) {
    for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
      TempFolder folder;
      TestMachine machine(true);
      KvCache kv(machine.device(), machine.host, shape,
                 {.device_blocks = 1,
                  .host_blocks = tier == Tier::kHost ? 4 : 0,
                  .disk_blocks = tier == Tier::kDisk ? 4 : 0,
                  .queue = &machine.queue,
                  .disk_dir = folder.path()});
      KvSwap swap(*machine.transfers, machine.host, shape, 3, /*overlap=*/true);
      StallClock stalls(machine.device());
      const auto keys = static_cast<size_t>(shape.plane_block_bytes(KvPart::kKeys));
      const auto values = static_cast<size_t>(shape.plane_block_bytes(KvPart::kValues));
      SwapGroup writes, reads;
      writes.tier = reads.tier = tier;
      writes.stores = {{{tier, 2}, 0}, {{tier, 3}, 1}, {{tier, 0}, 2}};
      reads.loads = {{{tier, 3}, 0}, {{tier, 2}, 2}};
      swap.load(kv, 0, writes);
      KvLayerView pages = swap.begin(kv, 0, writes, kDense, stalls);
      EXPECT_EQ(pages.v != nullptr, values > 0);
      for (size_t block = 0; block < 3; ++block) {
        std::memset(pages.k + block * keys, static_cast<int>(10 + block), keys);
        if (values > 0) std::memset(pages.v + block * values, static_cast<int>(20 + block), values);
      }
      swap.end(kv, 0, writes, stalls);
      swap.load(kv, 0, reads);
      pages = swap.begin(kv, 0, reads, kDense, stalls);
      const auto expect_all = [](const std::byte* bytes, size_t count, int value) {
        EXPECT_TRUE(std::all_of(bytes, bytes + count, [&](std::byte of) {
          return of == static_cast<std::byte>(value);
        })) << value;
      };
      machine.device().synchronize();
      for (const auto& [staging, wrote] : {std::pair<size_t, int>{0, 1}, {2, 0}}) {
        expect_all(pages.k + staging * keys, keys, 10 + wrote);
        if (values > 0) expect_all(pages.v + staging * values, values, 20 + wrote);
      }
      swap.end(kv, 0, reads, stalls);
      swap.synchronize();
      EXPECT_EQ(swap.take_stats().to_host_bytes, 3 * (keys + values));
    }
  }
}

// A layer without KV of its own reads what the owner of its KV has written in the same step, and
// stores nothing.
TEST(KvSwapPlanesTest, ALayerThatReadsAnothersKvLoadsWhatThatOneStores) {
  constexpr KvGroupShape kOne{.layers = 1, .kv_heads = 2, .head_dim = 8, .type = KvType::kF16};
  const KvShapes shapes({kOne}, {{0, 0}, {0, 0, false}});
  const auto bytes = static_cast<size_t>(kOne.plane_block_bytes());
  TestMachine machine(true);
  KvCache kv(machine.device(), machine.host, shapes, {.device_blocks = 1, .host_blocks = 4});
  KvSwap swap(*machine.transfers, machine.host, shapes, 2, /*overlap=*/true);
  StallClock stalls(machine.device());
  SwapGroup group;
  group.loads = {{HostBlock{3}, 0}};
  group.stores = {{HostBlock{3}, 0}, {HostBlock{1}, 1}};
  for (int layer = 0; layer < 2; ++layer) {
    swap.load(kv, layer, group);
    const KvLayerView pages = swap.begin(kv, layer, group, kDense, stalls);
    machine.device().synchronize();
    for (size_t block = 0; block < 2; ++block) {
      if (layer == 1) {
        EXPECT_EQ(pages.k[block * bytes], static_cast<std::byte>(7 + block));
        EXPECT_EQ(pages.v[block * bytes], static_cast<std::byte>(9 + block));
      }
      std::memset(pages.k + block * bytes, static_cast<int>(7 + block) + 100 * layer, bytes);
      std::memset(pages.v + block * bytes, static_cast<int>(9 + block) + 100 * layer, bytes);
    }
    swap.end(kv, layer, group, stalls);
  }
  swap.synchronize();
  machine.device().synchronize();
  EXPECT_EQ(kv.host_layer(0).k[1 * bytes], std::byte{8});
  EXPECT_EQ(kv.host_layer(0).v[3 * bytes], std::byte{9});
  EXPECT_EQ(swap.take_stats().to_host_bytes, 4 * bytes);
}

}  // namespace
}  // namespace spillway
