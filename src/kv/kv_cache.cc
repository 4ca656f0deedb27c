// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include "base/error.h"

namespace spillway {

int64_t KvShape::block_bytes() const {
  return int64_t{2} * layers * kv_heads * kv_page_bytes(type, head_dim);
}

KvCache::KvCache(Device& device, const KvShape& shape, int32_t blocks)
    : shape_(shape), blocks_(blocks) {
  SPW_CHECK(blocks > 0, kInvalidArgument, "a KV cache of {} blocks holds nothing", blocks);
  SPW_CHECK(kv_type_supports(shape.type, shape.head_dim), kUnsupported,
            "a KV cache of {} takes heads of a multiple of 8 elements, at most 256; these have {}",
            kv_type_name(shape.type), shape.head_dim);
  const auto plane_bytes = static_cast<size_t>(shape.block_bytes() / (2 * shape.layers) * blocks);
  for (int layer = 0; layer < shape.layers; ++layer) {
    k_.push_back(device.allocate(plane_bytes, MemoryTag::kKv));
    v_.push_back(device.allocate(plane_bytes, MemoryTag::kKv));
  }
}

KvLayerView KvCache::layer(int index) const {
  const auto i = static_cast<size_t>(index);
  return {shape_.type, blocks_, shape_.kv_heads, shape_.head_dim, k_.at(i).data(), v_.at(i).data()};
}

}  // namespace spillway
