// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include "base/error.h"

namespace spillway {

int64_t KvShape::block_bytes() const {
  return 2 * layers * row_bytes(dtype, int64_t{kv_heads} * kKvBlockTokens * head_dim);
}

KvCache::KvCache(Device& device, const KvShape& shape, int32_t blocks)
    : shape_(shape), blocks_(blocks) {
  SPW_CHECK(blocks > 0, kInvalidArgument, "a KV cache of {} blocks holds nothing", blocks);
  const auto plane_bytes = static_cast<size_t>(shape.block_bytes() / (2 * shape.layers) * blocks);
  for (int layer = 0; layer < shape.layers; ++layer) {
    k_.push_back(device.allocate(plane_bytes, MemoryTag::kKv));
    v_.push_back(device.allocate(plane_bytes, MemoryTag::kKv));
  }
}

KvLayerView KvCache::layer(int index) const {
  const auto i = static_cast<size_t>(index);
  return {shape_.dtype,    blocks_,         shape_.kv_heads,
          shape_.head_dim, k_.at(i).data(), v_.at(i).data()};
}

}  // namespace spillway
