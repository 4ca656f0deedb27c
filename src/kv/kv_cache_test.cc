// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/test_scoped_folder.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

class KvCacheTest : public testing::Test {
 protected:
  KvCacheTest()
      : folder_(std::filesystem::temp_directory_path()),
        machine_(true),
        kv_(machine_.device(), machine_.host,
            KvGroupShape{.layers = 1, .kv_heads = 1, .head_dim = 8, .type = KvType::kF16},
            {.device_blocks = 4,
             .host_blocks = 3,
             .disk_blocks = 2,
             .queue = &machine_.queue,
             .disk_dir = folder_.path()}) {}

  ScopedFolder folder_;
  TestMachine machine_;
  KvCache kv_;
};

TEST_F(KvCacheTest, EachMemoryHasBlocksOfItsOwn) {
  EXPECT_EQ(kv_.blocks(), 9);
  EXPECT_EQ(kv_.pools(), (std::vector<int32_t>{4, 3, 2}));
  EXPECT_TRUE(kv_.has(DeviceBlock{3}) && kv_.has(HostBlock{2}) && kv_.has(DiskBlock{1}));
  EXPECT_FALSE(kv_.has(DeviceBlock{4}) || kv_.has(HostBlock{3}) || kv_.has(DiskBlock{2}));
  EXPECT_FALSE(kv_.has(DeviceBlock{-1}));
}

TEST_F(KvCacheTest, ItsBlocksInOrderGoFromMemoryToMemory) {
  EXPECT_EQ(kv_.blocks_in_order(3, 5),
            (std::vector<BlockId>{DeviceBlock{3}, HostBlock{0}, HostBlock{1}, HostBlock{2},
                                  DiskBlock{0}}));
  EXPECT_EQ(kv_.blocks_in_order(0, 2), block_range(0, 2));
  EXPECT_THROW(kv_.blocks_in_order(3, 7), Error);
}

TEST_F(KvCacheTest, BlocksBehindTheDevicesAreNotTouched) {
  std::vector<std::byte> bytes(static_cast<size_t>(kv_.shape().block_bytes()));
  std::vector<CopyPiece> pieces;
  for (const DeviceBlock none : {DeviceBlock{4}, DeviceBlock{-1}}) {
    EXPECT_THROW(kv_.reload(none), Error);
    EXPECT_THROW(kv_.copy_block(machine_.device(), DeviceBlock{0}, none), Error);
    EXPECT_THROW(kv_.copy_block(machine_.device(), none, DeviceBlock{0}), Error);
    EXPECT_THROW(kv_.add_pieces(none, bytes.data(), KvCache::Direction::kToHost, pieces), Error);
  }
  EXPECT_TRUE(pieces.empty());
  kv_.copy_block(machine_.device(), DeviceBlock{0}, DeviceBlock{3});
}

}  // namespace
}  // namespace spillway
