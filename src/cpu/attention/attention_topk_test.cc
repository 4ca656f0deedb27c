// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/attention_topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "cpu/cpu_device.h"
#include "device/sparse_attention.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

constexpr int kHeads = 6, kKvHeads = 2, kDim = 32;
constexpr int32_t kKeys = 1000;

struct Pages {
  Pages() : k(size_t{kBlocks} * kKvHeads * kKvBlockTokens * kDim), v(k.size()) {
    const auto count = static_cast<int64_t>(k.size());
    fill_random(DType::kF32, reinterpret_cast<std::byte*>(k.data()), count, 1, 1);
    fill_random(DType::kF32, reinterpret_cast<std::byte*>(v.data()), count, 2, 1);
    std::iota(table.begin(), table.end(), 0);
  }
  KvLayerView view() {
    return {KvType::kF32,
            kBlocks,
            kKvHeads,
            kDim,
            reinterpret_cast<std::byte*>(k.data()),
            reinterpret_cast<std::byte*>(v.data())};
  }
  float* value(int64_t key, int64_t kv_head) {
    return v.data() +
           ((key / kKvBlockTokens * kKvHeads + kv_head) * kKvBlockTokens + key % kKvBlockTokens) *
               kDim;
  }

  static constexpr int64_t kBlocks = (kKeys + kKvBlockTokens - 1) / kKvBlockTokens;
  std::vector<float> k, v;
  std::vector<int32_t> table = std::vector<int32_t>(kBlocks);
};

std::vector<float> queries() {
  std::vector<float> q(2 * kHeads * kDim);
  fill_random(DType::kF32, reinterpret_cast<std::byte*>(q.data()), static_cast<int64_t>(q.size()),
              3, 1);
  return q;
}

Activations view(std::vector<float>& values) {
  const int64_t cols = kHeads * kDim;
  return {DType::kF32, static_cast<int64_t>(values.size()) / cols, cols, cols,
          reinterpret_cast<std::byte*>(values.data())};
}

// The reported count is what the kernel reads, not what it should read.
TEST(AttentionTopKTest, ReadsAsManyEntriesAsAreReported) {
  CpuDevice device({.threads = 1});
  ThreadPool pool(2);
  Workspace workspace(device, 2);
  Pages pages;
  std::vector<float> q = queries(), out(q.size());
  for (const int window : {0, 105}) {
    for (const float share : {0.001F, 0.1F, 0.25F, 1.0F}) {
      const AttentionArgs a{.q = q.data(),
                            .q_stride = kHeads * kDim,
                            .out = out.data(),
                            .out_stride = kHeads * kDim,
                            .k = reinterpret_cast<const uint8_t*>(pages.k.data()),
                            .v = reinterpret_cast<const uint8_t*>(pages.v.data()),
                            .layout = KvPageLayout(KvType::kF32, kDim),
                            .kv_heads = kKvHeads,
                            .group = kHeads / kKvHeads,
                            .head_dim = kDim,
                            .padded_dim = kDim,
                            .scale = 0.2F,
                            .window = window};
      const SequenceSpan spans[] = {{0, 1, kKeys - 1, pages.table, {}, true},
                                    {1, 1, 40, pages.table, {}, true}};
      const int64_t entries = cpu::attend_top_k(pool, workspace, a, share, spans);
      AttentionTraffic traffic;
      traffic.add(spans, pages.view(), {kHeads, 0.2F, window, share}, 1);
      EXPECT_EQ(static_cast<uint64_t>(entries) * kDim * sizeof(float), traffic.v_bytes)
          << share << " " << window;
    }
  }
}

// Values of keys that do not take part may be anything: they are not touched.
TEST(AttentionTopKTest, DoesNotTouchOtherValues) {
  CpuDevice device({.threads = 2});
  Pages pages;
  std::vector<float> q = queries();
  q.resize(kHeads * kDim);
  std::vector<float> first(q.size()), second(q.size());
  constexpr int32_t kContext = 200;
  const SequenceSpan span{0, 1, kContext - 1, pages.table, {}, /*generates=*/true};
  const AttentionParams params{kHeads, 0.2F, 0, 0.05F};
  device.ops().attention(view(q), pages.view(), {&span, 1}, params, view(first));
  // The values that matter are those that change the result.
  int64_t used = 0;
  for (int64_t key = 0; key < kContext; ++key) {
    for (int64_t head = 0; head < kKvHeads; ++head) {
      float* const value = pages.value(key, head);
      const std::vector<float> old(value, value + kDim);
      std::fill_n(value, kDim, NAN);
      device.ops().attention(view(q), pages.view(), {&span, 1}, params, view(second));
      const bool same = std::memcmp(first.data(), second.data(), first.size() * 4) == 0;
      used += same ? 0 : 1;
      if (!same) std::copy(old.begin(), old.end(), value);
    }
  }
  EXPECT_LE(used, kHeads * 10);
  EXPECT_GE(used, kKvHeads * 10);
  device.ops().attention(view(q), pages.view(), {&span, 1}, params, view(second));
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * 4), 0);
}

TEST(AttentionTopKTest, IsTheSameBitsForAnyNumberOfThreads) {
  Pages pages;
  std::vector<float> q = queries();
  std::vector<std::vector<float>> results;
  const SequenceSpan spans[] = {{0, 1, kKeys - 1, pages.table, {}, true},
                                {1, 1, 300, pages.table, {}, true}};
  for (const int threads : {1, 2, 3, 5}) {
    CpuDevice device({.threads = threads});
    results.emplace_back(q.size());
    device.ops().attention(view(q), pages.view(), spans, {kHeads, 0.2F, 0, 0.1F},
                           view(results.back()));
    EXPECT_EQ(results.back(), results.front()) << threads;
  }
}

}  // namespace
}  // namespace spillway
