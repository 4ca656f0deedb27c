// SPDX-License-Identifier: Apache-2.0
// One layer's paged KV in a device's memory, with shuffled pages that start as NaN.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tensor/kv_format.h"
#include "tests/parity/parity_device.h"

namespace spillway::parity {

class PagedKv {
 public:
  PagedKv(TestDevice& device, KvType type, int kv_heads, int head_dim, int64_t blocks)
      : order_(static_cast<size_t>(blocks)) {
    view_ = {.type = type,
             .blocks = blocks,
             .kv_heads = kv_heads,
             .head_dim = head_dim,
             .layer = kLayer};
    const auto bytes = static_cast<size_t>(view_.block_bytes() * blocks);
    const std::vector<std::byte> poison(bytes, std::byte{0xff});  // NaN in F16, F32, and as scales
    for (Buffer* plane : {&k_, &v_}) {
      *plane = device.device().allocate(bytes, MemoryTag::kKv);
      device.upload(plane->data(), poison.data(), bytes);
    }
    view_.k = k_.data();
    view_.v = v_.data();
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(9));
  }

  static constexpr int kLayer = 5;  // the layer that faults must name
  const KvLayerView& view() const { return view_; }
  // Returns a block table for the next `tokens` positions of a new sequence; pages are never
  // shared.
  std::vector<int32_t> take_blocks(int64_t tokens) {
    const auto count = static_cast<size_t>((tokens + kKvBlockTokens - 1) / kKvBlockTokens);
    std::vector<int32_t> table(order_.end() - static_cast<int64_t>(count), order_.end());
    order_.resize(order_.size() - count);
    return table;
  }

 private:
  Buffer k_, v_;
  KvLayerView view_;
  std::vector<int32_t> order_;
};

// Returns what the cache keeps of rows [.., head_dim].
inline std::vector<float> as_stored(KvType type, KvPart part, int head_dim,
                                    std::vector<float> values) {
  const KvPageLayout layout(type, head_dim);
  std::vector<std::byte> page(static_cast<size_t>(layout.bytes));
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(head_dim)) {
    store_kv_reference(layout, part, values.data() + i, page.data(), 0);
    load_kv_reference(layout, part, page.data(), 0, values.data() + i);
  }
  return values;
}

}  // namespace spillway::parity
