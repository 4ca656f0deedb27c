// SPDX-License-Identifier: Apache-2.0
// The paged KV cache's bytes, on the device and in host memory: per layer one K plane and one V
// plane [block][kv_head] of pages (tensor/kv_format.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/tier.h"
#include "device/device.h"
#include "memory/pinned_buffer.h"

namespace spillway {

struct KvShape {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  KvType type = KvType::kF16;

  // K and V of one block of 16 tokens, over all layers.
  int64_t block_bytes() const;
};

// Owns the planes. A block id means the same tokens in all layers; blocks [0, device_blocks) are on
// the device, those behind them in host memory. Layers are separate planes. Used by one step at a
// time. The devices must outlive it.
class KvCache {
 public:
  // Throws kOutOfMemory, and kUnsupported for heads that the type cannot hold.
  KvCache(Device& device, const KvShape& shape, int32_t blocks);
  // Part of it in the memory of `host`, pinned for the device. Either number may be 0.
  KvCache(Device& device, Device& host, const KvShape& shape, int32_t device_blocks,
          int32_t host_blocks);

  const KvShape& shape() const { return shape_; }
  int32_t blocks() const { return device_blocks_ + host_blocks_; }
  int32_t device_blocks() const { return device_blocks_; }
  int32_t host_blocks() const { return host_blocks_; }
  // For a BlockAllocator.
  std::vector<int32_t> pools() const;
  Tier tier_of(int32_t block) const { return block < device_blocks_ ? Tier::kDevice : Tier::kHost; }

  // The blocks on the device, and those in host memory by their ids less device_blocks().
  KvLayerView layer(int index) const;
  KvLayerView host_layer(int index) const;

 private:
  size_t plane_bytes(int32_t blocks) const;

  KvShape shape_;
  int32_t device_blocks_;
  int32_t host_blocks_ = 0;
  std::vector<Buffer> k_, v_;  // [layer]
  PinnedBuffer host_;          // [layer][k, v]
};

}  // namespace spillway
