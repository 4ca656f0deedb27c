// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include "base/error.h"

namespace spillway {

KvCache::KvCache(Device& device, const KvShape& shape, int32_t blocks)
    : KvCache(device, device, shape, Sizes{.device_blocks = blocks}) {}

KvCache::KvCache(Device& device, Device& host, const KvShape& shape, const Sizes& sizes)
    : shape_(shape),
      device_blocks_(sizes.device_blocks),
      host_blocks_(sizes.host_blocks),
      disk_blocks_(sizes.disk_blocks) {
  SPW_CHECK(device_blocks_ >= 0 && host_blocks_ >= 0 && disk_blocks_ >= 0 && blocks() > 0,
            kInvalidArgument, "a KV cache of {} blocks holds nothing", blocks());
  SPW_CHECK(kv_type_supports(shape.type, shape.head_dim), kUnsupported,
            "a KV cache of {} takes heads of a multiple of 8 elements, at most 256; these have {}",
            kv_type_name(shape.type), shape.head_dim);
  for (int layer = 0; layer < shape.layers && device_blocks_ > 0; ++layer) {
    k_.push_back(device.allocate(plane_bytes(device_blocks_), MemoryTag::kKv));
    v_.push_back(device.allocate(plane_bytes(device_blocks_), MemoryTag::kKv));
  }
  if (host_blocks_ > 0) {
    host_ = PinnedBuffer(host, device,
                         plane_bytes(host_blocks_) * 2 * static_cast<size_t>(shape.layers),
                         MemoryTag::kKv);
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
  std::vector<int32_t> sizes = {device_blocks_};
  if (host_blocks_ > 0 || disk_blocks_ > 0) sizes.push_back(host_blocks_);
  if (disk_blocks_ > 0) sizes.push_back(disk_blocks_);
  return sizes;
}

KvLayerView KvCache::layer(int index) const {
  KvLayerView view{.type = shape_.type,
                   .blocks = device_blocks_,
                   .kv_heads = shape_.kv_heads,
                   .head_dim = shape_.head_dim,
                   .layer = index};
  if (device_blocks_ == 0) return view;
  view.k = k_.at(static_cast<size_t>(index)).data();
  view.v = v_.at(static_cast<size_t>(index)).data();
  return view;
}

void KvCache::copy_block(Device& device, int32_t from, int32_t to) const {
  SPW_ASSERT(tier_of(from) == Tier::kDevice && tier_of(to) == Tier::kDevice);
  const auto page = static_cast<int64_t>(plane_bytes(1));
  const int64_t words = page / static_cast<int64_t>(sizeof(float));
  for (int index = 0; index < shape_.layers; ++index) {
    const KvLayerView view = layer(index);
    for (std::byte* const plane : {view.k, view.v}) {
      const auto at = [&](int32_t block) {
        return Activations{DType::kF32, 1, words, words, plane + block * page};
      };
      device.ops().copy(at(from), at(to));
    }
  }
}

void KvCache::add_pieces(int32_t block, std::byte* host, Direction direction,
                         std::vector<CopyPiece>& pieces) const {
  SPW_ASSERT(tier_of(block) == Tier::kDevice);
  const size_t page = plane_bytes(1);
  for (int index = 0; index < shape_.layers; ++index) {
    const KvLayerView view = layer(index);
    for (std::byte* const plane : {view.k, view.v}) {
      std::byte* const there = plane + static_cast<size_t>(block) * page;
      pieces.push_back(direction == Direction::kToDevice ? CopyPiece{there, host, page}
                                                         : CopyPiece{host, there, page});
      host += page;
    }
  }
}

KvLayerView KvCache::host_layer(int index) const {
  SPW_ASSERT(index >= 0 && index < shape_.layers && host_blocks_ > 0);
  const size_t plane = plane_bytes(host_blocks_);
  std::byte* const k = host_.data() + 2 * static_cast<size_t>(index) * plane;
  return {.type = shape_.type,
          .blocks = host_blocks_,
          .kv_heads = shape_.kv_heads,
          .head_dim = shape_.head_dim,
          .k = k,
          .v = k + plane,
          .layer = index};
}

}  // namespace spillway
