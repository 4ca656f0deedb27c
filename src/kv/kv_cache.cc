// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <cstring>

#include "base/error.h"

namespace spillway {

KvCache::KvCache(Device& device, const KvShape& shape, int32_t blocks)
    : KvCache(device, device, shape, Sizes{.device_blocks = blocks}) {}

KvCache::KvCache(Device& device, Device& host, const KvShape& shape, const Sizes& sizes)
    : shape_(shape),
      layers_({.layers = shape.layers,
               .blocks = sizes.device_blocks,
               .most = sizes.most_turning,
               .spare = sizes.spare_buffers}),
      most_device_blocks_(layers_.sizes().most_blocks()),
      host_blocks_(sizes.host_blocks),
      disk_blocks_(sizes.disk_blocks) {
  SPW_CHECK(sizes.device_blocks >= 0 && host_blocks_ >= 0 && disk_blocks_ >= 0 && blocks() > 0,
            kInvalidArgument, "a KV cache of {} blocks holds nothing", blocks());
  SPW_CHECK(kv_type_supports(shape.type, shape.head_dim), kUnsupported,
            "a KV cache of {} takes heads of a multiple of 8 elements, at most 256; these have {}",
            kv_type_name(shape.type), shape.head_dim);
  const auto layers = static_cast<size_t>(shape.layers);
  if (sizes.most_turning > 0) {
    SPW_ASSERT(sizes.device_blocks > 0);
    region_ = device.allocate(2 * plane_bytes(sizes.device_blocks) * layers, MemoryTag::kKv);
    away_ =
        PinnedBuffer(host, device,
                     2 * plane_bytes(most_device_blocks_) * static_cast<size_t>(sizes.most_turning),
                     MemoryTag::kKv);
  }
  for (size_t layer = 0; layer < layers && sizes.device_blocks > 0 && region_.empty(); ++layer) {
    k_.push_back(device.allocate(plane_bytes(sizes.device_blocks), MemoryTag::kKv));
    v_.push_back(device.allocate(plane_bytes(sizes.device_blocks), MemoryTag::kKv));
  }
  if (host_blocks_ > 0) {
    host_ = PinnedBuffer(host, device, plane_bytes(host_blocks_) * 2 * layers, MemoryTag::kKv);
    host_readable_ = host_.is_pinned() && device.reads_pinned_memory();
  }
  if (disk_blocks_ > 0) {
    SPW_ASSERT(sizes.queue != nullptr);
    disk_ = std::make_unique<BlockFile>(
        *sizes.queue, sizes.disk_dir, 2 * plane_bytes(1),
        static_cast<uint32_t>(shape.layers) * static_cast<uint32_t>(disk_blocks_),
        sizes.disk_budget);
  }
}

size_t KvCache::plane_bytes(int32_t blocks) const {
  return static_cast<size_t>(shape_.block_bytes() / (2 * shape_.layers) * blocks);
}

std::vector<int32_t> KvCache::pools() const {
  std::vector<int32_t> sizes = {device_blocks()};
  if (host_blocks_ > 0 || disk_blocks_ > 0) sizes.push_back(host_blocks_);
  if (disk_blocks_ > 0) sizes.push_back(disk_blocks_);
  return sizes;
}

bool KvCache::has(BlockId block) const {
  const int32_t blocks = block.tier == Tier::kDevice ? device_blocks()
                         : block.tier == Tier::kHost ? host_blocks_
                                                     : disk_blocks_;
  return block.number >= 0 && block.number < blocks;
}

std::vector<BlockId> KvCache::blocks_in_order(int64_t first, int64_t count) const {
  SPW_ASSERT(first >= 0 && count >= 0 && first + count <= blocks());
  std::vector<BlockId> all = block_range(0, device_blocks());
  for (const BlockId block : block_range(0, host_blocks_, Tier::kHost)) all.push_back(block);
  for (const BlockId block : block_range(0, disk_blocks_, Tier::kDisk)) all.push_back(block);
  return {all.begin() + first, all.begin() + first + count};
}

KvLayerView KvCache::view(std::byte* k, int32_t blocks) const {
  return {.type = shape_.type,
          .blocks = blocks,
          .kv_heads = shape_.kv_heads,
          .head_dim = shape_.head_dim,
          .k = k,
          .v = k == nullptr ? nullptr : k + plane_bytes(blocks)};
}

KvLayerView KvCache::layer(int index) const {
  KvLayerView of = view(nullptr, device_blocks());
  if (!region_.empty()) {
    const int buffer = layers_.device_buffer(index);
    if (buffer >= 0) of = device_buffer(buffer, device_blocks());
  } else if (!k_.empty()) {
    of.k = k_.at(static_cast<size_t>(index)).data();
    of.v = v_.at(static_cast<size_t>(index)).data();
  }
  of.layer = index;
  return of;
}

std::vector<KvPlanes> KvCache::planes_of_step() const {
  std::vector<KvPlanes> planes;
  for (int index = 0; index < shape_.layers; ++index) {
    const KvLayerView of =
        region_.empty() ? layer(index)
                        : device_buffer(layers_.device_buffer_in_step(index), device_blocks());
    planes.push_back({of.k, of.v});
  }
  return planes;
}

KvLayerView KvCache::device_buffer(int buffer, int32_t blocks) const {
  return view(region_.data() + 2 * plane_bytes(blocks) * static_cast<size_t>(buffer), blocks);
}

KvLayerView KvCache::host_buffer(int buffer) const {
  return view(away_.data() + 2 * plane_bytes(most_device_blocks_) * static_cast<size_t>(buffer),
              most_device_blocks_);
}

void KvCache::copy_block(Device& device, DeviceBlock from, DeviceBlock to) {
  SPW_ASSERT(has(from) && has(to));
  copy_on_device(device, {from, to}, 1);
  if (layers_.turning() > 0) copies_.push_back({from, to});
}

void KvCache::move_blocks(Device& device, std::span<const BlockCopy> moves) {
  const size_t page = plane_bytes(1);
  for (size_t i = 0; i < moves.size();) {
    const BlockCopy first = moves[i];
    int32_t count = 1;
    while (++i < moves.size() && moves[i].from.number == first.from.number + count &&
           moves[i].to.number == first.to.number + count)
      ++count;
    SPW_ASSERT(has(first.from) && has(moves[i - 1].from) && has(first.to) && has(moves[i - 1].to));
    copy_on_device(device, first, count);
    for (int index = 0; index < shape_.layers; ++index) {
      if (!layers_.takes_turns(index)) continue;
      const KvLayerView view = host_buffer(layers_.host_buffer(index));
      for (std::byte* const plane : {view.k, view.v})
        std::memcpy(plane + static_cast<size_t>(first.to.number) * page,
                    plane + static_cast<size_t>(first.from.number) * page,
                    static_cast<size_t>(count) * page);
    }
  }
}

void KvCache::copy_on_device(Device& device, const BlockCopy& first, int32_t count) const {
  const auto page = static_cast<int64_t>(plane_bytes(1));
  const int64_t words = page / static_cast<int64_t>(sizeof(float));
  for (int index = 0; index < shape_.layers; ++index) {
    if (layers_.takes_turns(index)) continue;
    const KvLayerView view = layer(index);
    for (std::byte* const plane : {view.k, view.v}) {
      const auto at = [&](DeviceBlock block) {
        return Activations{DType::kF32, count, words, words, plane + block.number * page};
      };
      device.ops().copy(at(first.from), at(first.to));
    }
  }
}

void KvCache::add_pieces(DeviceBlock block, std::byte* host, Direction direction,
                         std::vector<CopyPiece>& pieces) const {
  SPW_ASSERT(has(block));
  const size_t page = plane_bytes(1);
  for (int index = 0; index < shape_.layers; ++index) {
    const KvLayerView view =
        layers_.takes_turns(index) ? host_buffer(layers_.host_buffer(index)) : layer(index);
    for (std::byte* const plane : {view.k, view.v}) {
      std::byte* const there = plane + static_cast<size_t>(block.number) * page;
      pieces.push_back(direction == Direction::kToDevice ? CopyPiece{there, host, page}
                                                         : CopyPiece{host, there, page});
      host += page;
    }
  }
}

KvLayerView KvCache::host_layer(int index) const {
  SPW_ASSERT(index >= 0 && index < shape_.layers && host_blocks_ > 0);
  const size_t plane = plane_bytes(host_blocks_);
  KvLayerView of = view(host_.data() + 2 * static_cast<size_t>(index) * plane, host_blocks_);
  of.layer = index;
  return of;
}

}  // namespace spillway
