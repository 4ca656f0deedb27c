// SPDX-License-Identifier: Apache-2.0
// The paged KV cache's bytes: per layer one K plane and one V plane
// [block][kv_head] of pages (tensor/kv_format.h).
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"

namespace spillway {

struct KvShape {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  KvType type = KvType::kF16;

  // K and V of one block of 16 tokens, over all layers.
  int64_t block_bytes() const;
};

// Owns the planes, on one device. A block id means the same tokens in all layers; layers are
// separate allocations, as later they live in different tiers. Used by one step at a time.
class KvCache {
 public:
  // Throws kOutOfMemory, and kUnsupported for heads that the type cannot hold.
  KvCache(Device& device, const KvShape& shape, int32_t blocks);

  const KvShape& shape() const { return shape_; }
  int32_t blocks() const { return blocks_; }
  KvLayerView layer(int index) const;

 private:
  KvShape shape_;
  int32_t blocks_;
  std::vector<Buffer> k_, v_;  // [layer]
};

}  // namespace spillway
