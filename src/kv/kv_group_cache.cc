// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_group_cache.h"

#include <cstring>

#include "base/error.h"

namespace spillway {

KvGroupCache::KvGroupCache(Device& device, Device& host, const KvGroupShape& shape,
                           const KvGroupSizes& sizes, const KvDisk& disk)
    : shape_(shape),
      layers_({.layers = shape.layers,
               .blocks = sizes.device_blocks,
               .most = sizes.most_swapped,
               .spare = sizes.spare_buffers}),
      most_device_blocks_(layers_.sizes().most_blocks()),
      host_blocks_(sizes.host_blocks),
      disk_blocks_(sizes.disk_blocks) {
  const int64_t blocks = int64_t{device_blocks()} + host_blocks_ + disk_blocks_;
  SPW_CHECK(sizes.device_blocks >= 0 && host_blocks_ >= 0 && disk_blocks_ >= 0 && blocks > 0,
            kInvalidArgument, "a KV cache of {} blocks holds nothing", blocks);
  for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
    const KvPlaneShape plane = shape.plane(part);
    SPW_CHECK(
        !shape.rule.is_paged() || plane.heads == 0 || kv_type_supports(plane.type, plane.width),
        kUnsupported,
        "a KV cache of {} takes heads of a multiple of 8 elements, at most 256; these have "
        "{}",
        kv_type_name(plane.type), plane.width);
  }
  const auto layers = static_cast<size_t>(shape.layers);
  if (sizes.most_swapped > 0) {
    SPW_ASSERT(sizes.device_blocks > 0);
    region_ = device.allocate(layer_bytes(sizes.device_blocks) * layers, MemoryTag::kKv);
    away_ = PinnedBuffer(host, device,
                         layer_bytes(most_device_blocks_) * static_cast<size_t>(sizes.most_swapped),
                         MemoryTag::kKv);
  }
  for (size_t layer = 0; layer < layers && sizes.device_blocks > 0 && region_.empty(); ++layer) {
    k_.push_back(device.allocate(plane_bytes(sizes.device_blocks), MemoryTag::kKv));
    if (shape.has_values())
      v_.push_back(
          device.allocate(plane_bytes(sizes.device_blocks, KvPart::kValues), MemoryTag::kKv));
  }
  if (host_blocks_ > 0) {
    host_ = PinnedBuffer(host, device, layer_bytes(host_blocks_) * layers, MemoryTag::kKv);
    host_readable_ = host_.is_pinned() && device.reads_pinned_memory();
  }
  if (disk_blocks_ > 0) {
    SPW_ASSERT(disk.queue != nullptr);
    disk_ = std::make_unique<BlockFile>(
        *disk.queue, disk.dir, layer_bytes(1),
        static_cast<uint32_t>(shape.layers) * static_cast<uint32_t>(disk_blocks_), disk.budget);
  }
}

size_t KvGroupCache::plane_bytes(int32_t blocks, KvPart part) const {
  return static_cast<size_t>(shape_.plane_block_bytes(part) * blocks);
}

size_t KvGroupCache::layer_bytes(int32_t blocks) const {
  return static_cast<size_t>(shape_.layer_block_bytes() * blocks);
}

bool KvGroupCache::has(BlockId block) const {
  const int32_t blocks = block.tier == Tier::kDevice ? device_blocks()
                         : block.tier == Tier::kHost ? host_blocks_
                                                     : disk_blocks_;
  return block.number >= 0 && block.number < blocks;
}

std::vector<KvGroupCache::Plane> KvGroupCache::planes_of(const KvLayerView& view) const {
  std::vector<Plane> planes = {{view.k, plane_bytes(1)}};
  if (view.v != nullptr) planes.push_back({view.v, plane_bytes(1, KvPart::kValues)});
  return planes;
}

KvLayerView KvGroupCache::view(std::byte* k, int32_t blocks) const {
  return {.type = shape_.type,
          .blocks = blocks,
          .kv_heads = shape_.kv_heads,
          .head_dim = shape_.head_dim,
          .k = k,
          .v = k == nullptr || !shape_.has_values() ? nullptr : k + plane_bytes(blocks)};
}

KvLayerView KvGroupCache::layer(int index) const {
  KvLayerView of = view(nullptr, device_blocks());
  if (!region_.empty()) {
    const int buffer = layers_.device_buffer(index);
    if (buffer >= 0) of = device_buffer(buffer, device_blocks());
  } else if (!k_.empty()) {
    of.k = k_.at(static_cast<size_t>(index)).data();
    if (!v_.empty()) of.v = v_.at(static_cast<size_t>(index)).data();
  }
  of.layer = index;
  return of;
}

std::vector<KvPlanes> KvGroupCache::planes_of_step() const {
  std::vector<KvPlanes> planes;
  for (int index = 0; index < shape_.layers; ++index) {
    const KvLayerView of =
        region_.empty() ? layer(index)
                        : device_buffer(layers_.device_buffer_in_step(index), device_blocks());
    planes.push_back({of.k, of.v});
  }
  return planes;
}

KvLayerView KvGroupCache::device_buffer(int buffer, int32_t blocks) const {
  return view(region_.data() + layer_bytes(blocks) * static_cast<size_t>(buffer), blocks);
}

KvLayerView KvGroupCache::host_buffer(int buffer) const {
  return view(away_.data() + layer_bytes(most_device_blocks_) * static_cast<size_t>(buffer),
              most_device_blocks_);
}

void KvGroupCache::copy_block(Device& device, DeviceBlock from, DeviceBlock to) {
  SPW_ASSERT(has(from) && has(to));
  copy_on_device(device, {from, to}, 1);
  if (layers_.swapped_count() > 0) copies_.push_back({from, to});
}

void KvGroupCache::move_blocks(Device& device, std::span<const BlockCopy> moves) {
  for (size_t i = 0; i < moves.size();) {
    const BlockCopy first = moves[i];
    int32_t count = 1;
    while (++i < moves.size() && moves[i].from.number == first.from.number + count &&
           moves[i].to.number == first.to.number + count)
      ++count;
    SPW_ASSERT(has(first.from) && has(moves[i - 1].from) && has(first.to) && has(moves[i - 1].to));
    copy_on_device(device, first, count);
    for (int index = 0; index < shape_.layers; ++index) {
      if (!layers_.is_swapped(index)) continue;
      const KvLayerView view = host_buffer(layers_.host_buffer(index));
      for (const auto& [plane, page] : planes_of(view))
        std::memcpy(plane + static_cast<size_t>(first.to.number) * page,
                    plane + static_cast<size_t>(first.from.number) * page,
                    static_cast<size_t>(count) * page);
    }
  }
}

void KvGroupCache::copy_on_device(Device& device, const BlockCopy& first, int32_t count) const {
  for (int index = 0; index < shape_.layers; ++index) {
    if (layers_.is_swapped(index)) continue;
    const KvLayerView view = layer(index);
    for (const Plane& plane : planes_of(view)) {
      const auto words = static_cast<int64_t>(plane.page / sizeof(float));
      const auto at = [&](DeviceBlock block) {
        return Activations{DType::kF32, count, words, words,
                           plane.bytes + static_cast<size_t>(block.number) * plane.page};
      };
      device.ops().copy(at(first.from), at(first.to));
    }
  }
}

void KvGroupCache::add_pieces(DeviceBlock block, std::byte* host, Direction direction,
                              std::vector<CopyPiece>& pieces) const {
  SPW_ASSERT(has(block));
  for (int index = 0; index < shape_.layers; ++index) {
    const KvLayerView view =
        layers_.is_swapped(index) ? host_buffer(layers_.host_buffer(index)) : layer(index);
    for (const auto& [plane, page] : planes_of(view)) {
      std::byte* const there = plane + static_cast<size_t>(block.number) * page;
      pieces.push_back(direction == Direction::kToDevice ? CopyPiece{there, host, page}
                                                         : CopyPiece{host, there, page});
      host += page;
    }
  }
}

KvLayerView KvGroupCache::host_layer(int index) const {
  SPW_ASSERT(index >= 0 && index < shape_.layers && host_blocks_ > 0);
  KvLayerView of =
      view(host_.data() + static_cast<size_t>(index) * layer_bytes(host_blocks_), host_blocks_);
  of.layer = index;
  return of;
}

}  // namespace spillway
