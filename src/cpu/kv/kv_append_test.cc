// SPDX-License-Identifier: Apache-2.0
#include "cpu/kv/kv_append.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "tensor/half.h"

namespace spillway {
namespace {

Activations view(std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {DType::kF32, rows, cols, cols, reinterpret_cast<std::byte*>(values.data())};
}

TEST(KvAppendTest, RoundsToTheNearestHalfFloat) {
  constexpr int kDim = 128;
  CpuDevice device({.threads = 1});
  std::mt19937 generator(1);
  std::vector<float> k(16 * kDim), v(16 * kDim);
  for (float& value : k)
    value = std::ldexp(1 + static_cast<float>(generator() % 4096) / 4096,
                       static_cast<int>(generator() % 44) - 28);
  v = k;
  for (float& value : v) value = -value;
  std::vector<uint16_t> k_plane(16 * kDim), v_plane(16 * kDim);
  const KvLayerView kv{KvType::kF16,
                       1,
                       1,
                       kDim,
                       reinterpret_cast<std::byte*>(k_plane.data()),
                       reinterpret_cast<std::byte*>(v_plane.data())};
  const std::vector<int32_t> table{0};
  const SequenceSpan span{0, 16, 0, table};
  device.ops().kv_append(view(k, 16), view(v, 16), kv, {&span, 1});
  for (size_t i = 0; i < k.size(); ++i) {
    ASSERT_EQ(k_plane[i], to_half(k[i]).bits) << k[i];
    ASSERT_EQ(v_plane[i], to_half(v[i]).bits) << v[i];
  }
}

TEST(KvAppendTest, QuantizesAsTheReferenceDoes) {
  CpuDevice device({.threads = 1});
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (const KvType type : kAllKvTypes) {
    for (int dim = 8; dim <= 256; dim += 8) {
      const KvPageLayout layout(type, dim);
      std::vector<float> k(static_cast<size_t>(16 * dim)), v(k.size());
      for (float& value : k) value = normal(generator);
      for (float& value : v) value = 3 + 0.01F * normal(generator);
      std::fill(k.begin(), k.begin() + dim, 0.0F);  // all elements are equal
      v[static_cast<size_t>(dim)] = 1e30F;          // more than a half float holds
      k[static_cast<size_t>(2 * dim)] = -INFINITY;
      k[static_cast<size_t>(3 * dim + 5)] = NAN;
      v[static_cast<size_t>(4 * dim + 7)] = -70000;
      std::vector<std::byte> pages(static_cast<size_t>(2 * layout.bytes)), expected(pages);
      const KvLayerView kv{type, 1, 1, dim, pages.data(), pages.data() + layout.bytes};
      const std::vector<int32_t> table{0};
      const SequenceSpan span{0, 16, 0, table};
      device.ops().kv_append(view(k, 16), view(v, 16), kv, {&span, 1});
      for (int token = 0; token < 16; ++token) {
        store_kv_reference(layout, KvPart::kKeys, k.data() + token * dim, expected.data(), token);
        store_kv_reference(layout, KvPart::kValues, v.data() + token * dim,
                           expected.data() + layout.bytes, token);
      }
      ASSERT_EQ(pages, expected) << kv_type_name(type) << " " << dim;
    }
  }
}

TEST(KvAppendTest, ATableThatLeavesTheCacheIsABug) {
  CpuDevice device({.threads = 1});
  std::vector<float> k(4 * 8), v(4 * 8), planes(2 * 2 * 16 * 8);
  const KvLayerView kv{KvType::kF32,
                       2,
                       1,
                       8,
                       reinterpret_cast<std::byte*>(planes.data()),
                       reinterpret_cast<std::byte*>(planes.data() + 256)};
  const auto append = [&](const SequenceSpan& span) {
    device.ops().kv_append(view(k, 4), view(v, 4), kv, {&span, 1});
  };
  const std::vector<int32_t> good{1, 0}, outside{2}, negative{-1};
  EXPECT_NO_THROW(append({0, 4, 14, good}));
  EXPECT_THROW(append({0, 4, 0, outside}), Error);
  EXPECT_THROW(append({0, 4, 0, negative}), Error);
  EXPECT_THROW(append({0, 4, 30, good}), Error);
  EXPECT_THROW(append({1, 4, 0, good}), Error);
}

}  // namespace
}  // namespace spillway
