// SPDX-License-Identifier: Apache-2.0
// The bytes of one group's KV, on the device, in host memory and on disk: per layer one K plane and
// one V plane [block][kv_head] of pages (tensor/kv_format.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/tier.h"
#include "device/device.h"
#include "kv/block_id.h"
#include "kv/layer_table.h"
#include "memory/block_file.h"
#include "memory/pinned_buffer.h"
#include "tensor/kv_shape.h"

namespace spillway {

// Where a cache's blocks are. Layers that may take turns are those of one group.
struct KvGroupSizes {
  int32_t device_blocks = 0, host_blocks = 0, disk_blocks = 0;
  // Layers that may take turns, at most, and the buffers that they share; 0: all stay.
  int most_turning = 0;
  int spare_buffers = kSpareBuffers;
};

// Files for blocks on disk.
struct KvDisk {
  IoQueue* queue = nullptr;  // the engine's, which outlives the cache; needed for blocks on disk
  std::filesystem::path dir = {};
  uint64_t budget = ~uint64_t{0};
};

// Owns the planes of a group's layers, which are counted among themselves. A block id means the
// same tokens in all of them, and says which memory they are in. Layers are separate planes. Used
// by one step at a time. The devices must outlive it.
//
// Where some layers take turns (kv/layer_table.h), the device's planes are buffers of one region,
// and those layers live in host memory and come to the device for their part of a step
// (runtime/kv_turns.h). The region then has more blocks.
class KvGroupCache {
 public:
  // Blocks beyond the device's are in the memory of `host`, pinned for the device, and on disk.
  // Throws kOutOfMemory, and kUnsupported for heads that the type cannot hold.
  KvGroupCache(Device& device, Device& host, const KvGroupShape& shape, const KvGroupSizes& sizes,
               const KvDisk& disk);

  const KvGroupShape& shape() const { return shape_; }
  // The planes that a view of this group has: keys, and values where there are any, each with the
  // bytes of one block.
  struct Plane {
    std::byte* bytes = nullptr;
    size_t page = 0;
  };
  std::vector<Plane> planes_of(const KvLayerView& view) const;
  int32_t device_blocks() const { return layers_.blocks(); }
  int32_t host_blocks() const { return host_blocks_; }
  int32_t disk_blocks() const { return disk_blocks_; }
  bool has(BlockId block) const;

  // The blocks on the device, and those in host memory, by their numbers there.
  KvLayerView layer(int index) const;
  KvLayerView host_layer(int index) const;
  // All that `from` has, in all layers, in the order of the device's ops; the cache was made for
  // that device. In layers that take turns: when they come next.
  void copy_block(Device& device, DeviceBlock from, DeviceBlock to);
  // The same at once in all layers, where nothing is on its way.
  struct BlockCopy {
    DeviceBlock from, to;
  };
  void move_blocks(Device& device, std::span<const BlockCopy> moves);
  // All that a block on the device has, in all layers, as pieces of a copy to or from `host`, where
  // they lie one after the other. In layers that take turns that is between memories of the host.
  enum class Direction : uint8_t { kToDevice, kToHost };
  void add_pieces(DeviceBlock block, std::byte* host, Direction direction,
                  std::vector<CopyPiece>& pieces) const;

  // [layer] Before a step's first layer is attended to: where ops of that step find what is on the
  // device.
  std::vector<KvPlanes> planes_of_step() const;

  // Which layers' KV is on the device. Changed by who moves it (runtime/kv_turns.h).
  LayerTable& layers() { return layers_; }
  const LayerTable& layers() const { return layers_; }
  // A buffer of the region while each has so many blocks, and one in host memory.
  KvLayerView device_buffer(int buffer, int32_t blocks) const;
  KvLayerView host_buffer(int buffer) const;
  // The region is cut anew, for so many layers that take turns: addresses are others from now on.
  LayerTable::Recut recut(int turning) { return layers_.recut(turning); }
  // The block was filled through add_pieces(): what layers that take turns have of it on the device
  // is old.
  void reload(DeviceBlock block) {
    SPW_ASSERT(has(block));
    if (layers_.turning() > 0) copies_.push_back({block, block});
  }
  // Of these and copy_block(), since the last call: what layers that take turns have still to do.
  std::vector<BlockCopy> take_copies() { return std::exchange(copies_, {}); }
  // Whether the device may read those in host memory where they are.
  bool host_readable() const { return host_readable_; }
  // Those on disk: K and then V of a block of a layer are one block of the file. Null: none.
  BlockFile* disk() const { return disk_.get(); }
  uint32_t disk_id(int layer, DiskBlock block) const {
    return static_cast<uint32_t>(layer) * static_cast<uint32_t>(disk_blocks_) +
           static_cast<uint32_t>(block.number);
  }

 private:
  // In the layers that stay on the device: so many that lie together.
  void copy_on_device(Device& device, const BlockCopy& first, int32_t count) const;
  size_t plane_bytes(int32_t blocks, KvPart part = KvPart::kKeys) const;
  size_t layer_bytes(int32_t blocks) const;  // of all planes
  KvLayerView view(std::byte* k, int32_t blocks) const;

  KvGroupShape shape_;
  LayerTable layers_;
  int32_t most_device_blocks_;  // however many layers take turns
  int32_t host_blocks_ = 0;
  int32_t disk_blocks_ = 0;
  std::vector<Buffer> k_, v_;  // [layer], where all stay
  Buffer region_;              // [buffer][k, v], where some may take turns
  PinnedBuffer away_;          // [buffer][k, v], of those that do
  std::vector<BlockCopy> copies_;
  PinnedBuffer host_;  // [layer][k, v]
  bool host_readable_ = false;
  std::unique_ptr<BlockFile> disk_;
};

}  // namespace spillway
