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

// Checks where the parts of a state are in each memory: keys; values, whose width, heads and type
// may differ; and states of recurrent layers.
struct StateShape {
  const char* name;
  KvGroupShape shape;
  size_t keys, values;  // bytes of a block in a layer
};
std::vector<StateShape> every_state() {
  KvGroupShape differ{.layers = 3, .kv_heads = 2, .head_dim = 16, .type = KvType::kF16};
  differ.values = KvPlaneShape{1, 24, KvType::kInt8};
  KvGroupShape latent{.layers = 2, .kv_heads = 1, .head_dim = 64, .type = KvType::kF16};
  latent.values = KvPlaneShape{};
  // Like the states of a gated delta rule and of the convolution before it: any width, in F32.
  KvGroupShape recurrent{.layers = 2,
                         .kv_heads = 4,
                         .head_dim = 300,
                         .type = KvType::kF16,
                         .rule = {.kind = StateKind::kRecurrent}};
  recurrent.values = KvPlaneShape{1, 7, KvType::kF32};
  return {{"planes that differ", differ, 2 * 16 * 16 * 2,
           static_cast<size_t>(kv_page_bytes(KvType::kInt8, 24))},
          {"a latent", latent, 64 * 16 * 2, 0},
          {"recurrent", recurrent, 4 * 300 * 4, 7 * 4}};
}

TEST(KvCachePlanesTest, EachPlaneHasBlocksOfItsOwnSize) {
  for (const StateShape& state : every_state()) {
    for (const int swapped : {0, 2}) {
      if (swapped > 0 && state.shape.layers < 3) continue;
      SCOPED_TRACE(testing::Message() << state.name << ", " << swapped << " layers swapped");
      ScopedFolder folder(std::filesystem::temp_directory_path());
      TestMachine machine(true);
      KvCache kv(machine.device(), machine.host, state.shape,
                 {.device_blocks = 4,
                  .host_blocks = 3,
                  .disk_blocks = 2,
                  .queue = &machine.queue,
                  .disk_dir = folder.path(),
                  .most_swapped = swapped,
                  .spare_buffers = 1});
      const size_t block = state.keys + state.values;
      EXPECT_EQ(kv.block_bytes(), static_cast<int64_t>(block) * state.shape.layers);
      const KvLayerView host = kv.host_layer(1);
      EXPECT_EQ(host.v != nullptr, state.values > 0);
      if (state.values > 0) {
        EXPECT_EQ(host.v, host.k + 3 * state.keys);
      }
      EXPECT_EQ(host.k, kv.host_layer(0).k + 3 * block);
      EXPECT_GE(kv.disk()->stride(), block);

      // A block is copied out, back into another block, and then within the device.
      std::vector<std::byte> bytes(static_cast<size_t>(kv.block_bytes())), back(bytes.size());
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
      const auto move = [&](DeviceBlock of, std::vector<std::byte>& with,
                            KvCache::Direction direction) {
        std::vector<CopyPiece> pieces;
        kv.add_pieces(of, with.data(), direction, pieces);
        EXPECT_EQ(std::ssize(pieces), state.shape.layers * (state.values > 0 ? 2 : 1));
        const auto stream = machine.device().make_stream();
        direction == KvCache::Direction::kToDevice ? stream->copy_to_device(pieces)
                                                   : stream->copy_to_host(pieces);
        stream->synchronize();
      };
      move(DeviceBlock{1}, bytes, KvCache::Direction::kToDevice);
      if (swapped == 0) {
        kv.copy_block(machine.device(), DeviceBlock{1}, DeviceBlock{3});
        machine.device().synchronize();
      }
      move(DeviceBlock{swapped == 0 ? 3 : 1}, back, KvCache::Direction::kToHost);
      EXPECT_EQ(back, bytes);
    }
  }
}

TEST(KvCachePlanesTest, RefusesWidthsThatThePlanesTypeDoesNotHold) {
  TestMachine machine(false);
  KvGroupShape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .type = KvType::kF16};
  shape.values = KvPlaneShape{1, 13, KvType::kInt8};
  EXPECT_THROW(KvCache(machine.device(), shape, 4), Error);
  shape.values = KvPlaneShape{1, 24, KvType::kInt8};
  EXPECT_EQ(KvCache(machine.device(), shape, 4).blocks(), 4);
}

// Layers that read the KV of another layer have that layer's place.
TEST(KvCachePlanesTest, ALayerMayBeWhereAnotherIs) {
  TestMachine machine(false);
  const KvGroupShape shape{.layers = 2, .kv_heads = 1, .head_dim = 8, .type = KvType::kF16};
  const KvShapes shapes({shape}, {{0, 0}, {0, 1}, {0, 0, false}});
  KvCache kv(machine.device(), shapes, 4);
  EXPECT_EQ(kv.layer(2).k, kv.layer(0).k);
  EXPECT_EQ(kv.layer(2).layer, 2) << "faults name it";
  EXPECT_EQ(kv.planes_of_step().at(2).v, kv.layer(0).v);
  EXPECT_EQ(shapes.readers(0), 3);
  EXPECT_DOUBLE_EQ(shapes.mean_token_bytes(1), 2 * 8 * 2.0);
  EXPECT_DOUBLE_EQ(shapes.mean_new_token_bytes(), 2 * 8 * 2.0 * 2 / 3);
}

}  // namespace
}  // namespace spillway
