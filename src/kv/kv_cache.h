// SPDX-License-Identifier: Apache-2.0
// The paged KV cache of a model: one KvGroupCache for each group of layers with the same kind and
// shape of state (model/state_group.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "kv/block_allocator.h"
#include "kv/block_id.h"
#include "kv/kv_group_cache.h"
#include "kv/layer_table.h"
#include "memory/block_file.h"
#include "tensor/kv_shape.h"

namespace spillway {

// Layers are numbered as in the model. A block id names the group and the memory that the block is
// in. A method with a `group` parameter uses group 0 by default: models whose layers all keep the
// same state have no other. Used by one step at a time. The devices must outlive it.
class KvCache {
 public:
  using BlockCopy = KvGroupCache::BlockCopy;
  using Direction = KvGroupCache::Direction;

  // A cache with this many blocks of each group on the device. Throws kOutOfMemory, and
  // kUnsupported if the KV type cannot store heads of this size.
  KvCache(Device& device, const KvShapes& shapes, int32_t blocks);
  // The number of blocks in each memory.
  struct Sizes {
    int32_t device_blocks = 0, host_blocks = 0, disk_blocks = 0;  // of each group
    IoQueue* queue = nullptr;  // the engine's, which outlives this; needed for blocks on disk
    std::filesystem::path disk_dir = {};
    uint64_t disk_budget = ~uint64_t{0};
    // The most layers of KvShapes::swapped_group() that may be swapped (0: none are), and the
    // device buffers that they share. A swapped layer's KV lives in host memory and is loaded into
    // one of these buffers for the layer's part of a step.
    int most_swapped = 0;
    int spare_buffers = kSpareBuffers;
    // The blocks of each group, if they are not the same in all of them.
    struct Blocks {
      int32_t device = 0, host = 0, disk = 0;
    };
    std::vector<Blocks> groups = {};
  };
  // A cache with blocks on the device, in the memory of `host` (pinned for the device) and on disk.
  // Throws as above.
  KvCache(Device& device, Device& host, const KvShapes& shapes, const Sizes& sizes);

  const KvShapes& shapes() const { return shapes_; }
  const KvGroupShape& shape(int group = 0) const { return of(group).shape(); }
  int groups() const { return static_cast<int>(groups_.size()); }
  // The bytes of a block in all layers of its group.
  int64_t block_bytes(int group = 0) const { return shape(group).block_bytes(); }
  int32_t blocks(int group = 0) const {
    return device_blocks(group) + host_blocks(group) + disk_blocks(group);
  }
  int32_t device_blocks(int group = 0) const { return of(group).device_blocks(); }
  int32_t host_blocks(int group = 0) const { return of(group).host_blocks(); }
  int32_t disk_blocks(int group = 0) const { return of(group).disk_blocks(); }
  bool has(BlockId block) const { return block.group < groups() && of(block.group).has(block); }
  // The blocks of a group in each memory as they are now, for a BlockAllocator.
  std::vector<int32_t> pools(int group = 0) const;
  std::vector<GroupPools> group_pools() const;
  // Lists `count` of a group's blocks from the `first` on, those on the device before those in host
  // memory and on disk; for callers that have the cache to themselves.
  std::vector<BlockId> blocks_in_order(int64_t first, int64_t count, int group = 0) const;

  // The blocks of a layer on the device, and in host memory, by their numbers there.
  KvLayerView layer(int index) const { return named(index, of_layer(index).layer(at(index))); }
  KvLayerView host_layer(int index) const {
    return named(index, of_layer(index).host_layer(at(index)));
  }
  // These call the KvGroupCache of the group that the blocks belong to.
  void copy_block(Device& device, DeviceBlock from, DeviceBlock to) {
    of(from.group).copy_block(device, from, to);
  }
  void add_pieces(DeviceBlock block, std::byte* host, Direction direction,
                  std::vector<CopyPiece>& pieces) const {
    of(block.group).add_pieces(block, host, direction, pieces);
  }
  void reload(DeviceBlock block) { of(block.group).reload(block); }
  // [layer] Where a step's ops find the KV on the device. Call it before the first attention of the
  // step.
  std::vector<KvPlanes> planes_of_step() const;

  // The group whose layers may be swapped.
  int swapped_group() const { return swapped_; }
  KvGroupCache& swapped() { return of(swapped_); }
  const KvGroupCache& swapped() const { return of(swapped_); }
  LayerTable& layers() { return swapped().layers(); }
  const LayerTable& layers() const { return swapped().layers(); }

  // Whether the device may read blocks in host memory directly.
  bool host_readable() const { return of(0).host_readable(); }
  // The file of a layer's blocks on disk: K and then V of a block in one layer form one block of
  // the file. Null if none are there.
  BlockFile* disk(int layer = 0) const { return of_layer(layer).disk(); }
  uint32_t disk_id(int layer, DiskBlock block) const {
    return of_layer(layer).disk_id(at(layer), block);
  }

 private:
  const KvGroupCache& of(int group) const { return groups_.at(static_cast<size_t>(group)); }
  KvGroupCache& of(int group) { return groups_.at(static_cast<size_t>(group)); }
  const KvGroupCache& of_layer(int layer) const { return of(shapes_.place(layer).group); }
  int at(int layer) const { return shapes_.place(layer).index; }
  static KvLayerView named(int layer, KvLayerView view) {
    view.layer = layer;
    return view;
  }

  KvShapes shapes_;
  int swapped_ = 0;
  std::vector<KvGroupCache> groups_;
};

}  // namespace spillway
