// SPDX-License-Identifier: Apache-2.0
// One layer's paged KV in a device's memory, with shuffled pages that start as NaN.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tensor/half.h"
#include "tests/parity/parity_device.h"

namespace spillway::parity {

class PagedKv {
 public:
  PagedKv(TestDevice& device, DType type, int kv_heads, int head_dim, int64_t blocks)
      : order_(static_cast<size_t>(blocks)) {
    view_ = {type, blocks, kv_heads, head_dim, nullptr, nullptr};
    const auto bytes = static_cast<size_t>(view_.block_bytes() * blocks);
    const std::vector<std::byte> poison(bytes, std::byte{0xff});  // NaN in F16 and in F32
    for (Buffer* plane : {&k_, &v_}) {
      *plane = device.device().allocate(bytes, MemoryTag::kKv);
      device.upload(plane->data(), poison.data(), bytes);
    }
    view_.k = k_.data();
    view_.v = v_.data();
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(9));
  }

  const KvLayerView& view() const { return view_; }
  // A table for the next `tokens` positions of a new sequence; pages are never shared.
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

// What the cache keeps of a value.
inline std::vector<float> as_stored(DType type, std::vector<float> values) {
  if (type == DType::kF16) {
    for (float& value : values) value = to_float(to_half(value));
  }
  return values;
}

}  // namespace spillway::parity
