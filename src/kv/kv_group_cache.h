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

// The numbers of blocks in each memory. Only one group of a cache may have swapped layers, whose KV
// lives in host memory and is on the device only for their part of a step.
struct KvGroupSizes {
  int32_t device_blocks = 0, host_blocks = 0, disk_blocks = 0;
  // The most layers that may be swapped (0: none), and the buffers that swapped layers share.
  int most_swapped = 0;
  int spare_buffers = kSpareBuffers;
};

// Where the file for blocks on disk is made.
struct KvDisk {
  IoQueue* queue = nullptr;  // the engine's, which outlives the cache; needed for blocks on disk
  std::filesystem::path dir = {};
  uint64_t budget = ~uint64_t{0};
};

// Owns the planes of a group's layers, which are numbered within the group; each layer has planes
// of its own. A block id stands for the same tokens in all layers, and says which memory they are
// in. Used by one step at a time. The devices must outlive it.
//
// If some layers are swapped (kv/layer_table.h), the device's planes are buffers of one region;
// swapped layers live in host memory and are loaded to the device for their part of a step
// (runtime/layer_swapper.h). The region then has more blocks.
class KvGroupCache {
 public:
  // Blocks beyond the device's are in the memory of `host`, pinned for the device, and on disk.
  // Throws kOutOfMemory, and kUnsupported if the KV type cannot store heads of this size.
  KvGroupCache(Device& device, Device& host, const KvGroupShape& shape, const KvGroupSizes& sizes,
               const KvDisk& disk);

  const KvGroupShape& shape() const { return shape_; }
  // The planes of a view of this group: keys, and values if there are any, each with the bytes
  // of one block.
  struct Plane {
    std::byte* bytes = nullptr;
    size_t page = 0;
  };
  std::vector<Plane> planes_of(const KvLayerView& view) const;
  int32_t device_blocks() const { return layers_.blocks(); }
  int32_t host_blocks() const { return host_blocks_; }
  int32_t disk_blocks() const { return disk_blocks_; }
  bool has(BlockId block) const;

  // The blocks of a layer on the device, and in host memory, by their numbers there.
  KvLayerView layer(int index) const;
  KvLayerView host_layer(int index) const;
  // Copies a block in all layers, in the order of the device's ops; `device` is the one the cache
  // was made for. Swapped layers copy it when they are loaded next.
  void copy_block(Device& device, DeviceBlock from, DeviceBlock to);
  // A copy that move_blocks() makes immediately in all layers; no copy of KV may be in flight then.
  struct BlockCopy {
    DeviceBlock from, to;
  };
  void move_blocks(Device& device, std::span<const BlockCopy> moves);
  // Adds a device block's bytes in all layers as pieces of a copy to or from `host`, where they lie
  // one after the other. For swapped layers these are copies within host memory.
  enum class Direction : uint8_t { kToDevice, kToHost };
  void add_pieces(DeviceBlock block, std::byte* host, Direction direction,
                  std::vector<CopyPiece>& pieces) const;

  // [layer] Where a step's ops find the KV on the device. Call it before the first attention of the
  // step.
  std::vector<KvPlanes> planes_of_step() const;

  // Tracks which layers' KV is on the device. Changed by the code that moves it
  // (runtime/layer_swapper.h).
  LayerTable& layers() { return layers_; }
  const LayerTable& layers() const { return layers_; }
  // A buffer of the region while each has this many blocks, and a swapped layer's one in
  // host memory.
  KvLayerView device_buffer(int buffer, int32_t blocks) const;
  KvLayerView host_buffer(int buffer) const;
  // Divides the region anew for this many swapped layers; all addresses change.
  LayerTable::Recut recut(int swapped) { return layers_.recut(swapped); }
  // Must be called after a block was filled through add_pieces(): the copies of it that swapped
  // layers have on the device are out of date.
  void reload(DeviceBlock block) {
    SPW_ASSERT(has(block));
    if (layers_.swapped_count() > 0) copies_.push_back({block, block});
  }
  // Returns the blocks of copy_block() and reload() since the last call, which swapped layers have
  // yet to copy.
  std::vector<BlockCopy> take_copies() { return std::exchange(copies_, {}); }
  // Whether the device may read blocks in host memory directly.
  bool host_readable() const { return host_readable_; }
  // The file of blocks on disk: K and then V of a block in one layer form one block of it. Null if
  // none are there.
  BlockFile* disk() const { return disk_.get(); }
  uint32_t disk_id(int layer, DiskBlock block) const {
    return static_cast<uint32_t>(layer) * static_cast<uint32_t>(disk_blocks_) +
           static_cast<uint32_t>(block.number);
  }

 private:
  // Copies `count` consecutive blocks in the layers that are not swapped.
  void copy_on_device(Device& device, const BlockCopy& first, int32_t count) const;
  size_t plane_bytes(int32_t blocks, KvPart part = KvPart::kKeys) const;
  size_t layer_bytes(int32_t blocks) const;  // of all planes
  KvLayerView view(std::byte* k, int32_t blocks) const;

  KvGroupShape shape_;
  LayerTable layers_;
  int32_t most_device_blocks_;  // with the largest number of swapped layers
  int32_t host_blocks_ = 0;
  int32_t disk_blocks_ = 0;
  std::vector<Buffer> k_, v_;  // [layer], if none may be swapped
  Buffer region_;              // [buffer][k, v], if some may be swapped
  PinnedBuffer away_;          // [buffer][k, v], where the swapped layers' KV lives
  std::vector<BlockCopy> copies_;
  PinnedBuffer host_;  // [layer][k, v]
  bool host_readable_ = false;
  std::unique_ptr<BlockFile> disk_;
};

}  // namespace spillway
