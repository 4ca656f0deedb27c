// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "device/partitioned_attention.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

Activations view(std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {DType::kF32, rows, cols, cols, reinterpret_cast<std::byte*>(values.data())};
}

TEST(AttentionTest, ScratchMemoryDoesNotGrowWithRowsTimesKeys) {
  CpuDevice device({.threads = 2});
  constexpr int32_t kKeys = 32768;
  constexpr int kHeads = 4, kDim = 64;
  std::vector<std::byte> k(size_t{kKeys} * kDim * 2), v(k.size());
  fill_random(DType::kF16, k.data(), int64_t{kKeys} * kDim, 1, 1);
  fill_random(DType::kF16, v.data(), int64_t{kKeys} * kDim, 2, 1);
  std::vector<int32_t> table(kKeys / kKvBlockTokens);
  std::iota(table.begin(), table.end(), 0);
  const KvLayerView kv{KvType::kF16, kKeys / kKvBlockTokens, 1, kDim, k.data(), v.data()};
  std::vector<float> q(32 * kHeads * kDim, 0.1F), out(q.size(), NAN);
  const SequenceSpan span{0, 32, kKeys - 32, table};
  device.ops().attention(view(q, 32), kv, {&span, 1}, {kHeads, 0.125F, 0}, view(out, 32));
  for (const float value : out) ASSERT_TRUE(std::isfinite(value));
  EXPECT_LT(device.usage().peak_bytes, uint64_t{32} << 20);
}

TEST(AttentionTest, EqualKeysGiveTheMeanOfTheValues) {
  CpuDevice device({.threads = 1});
  constexpr int kDim = 16;
  std::vector<float> k(32 * kDim, 0.5F), v(32 * kDim), q(20 * kDim, 1), out(20 * kDim);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / kDim);
  const std::vector<int32_t> table{0, 1};
  const KvLayerView kv{KvType::kF32,
                       2,
                       1,
                       kDim,
                       reinterpret_cast<std::byte*>(k.data()),
                       reinterpret_cast<std::byte*>(v.data())};
  const SequenceSpan span{0, 20, 0, table};
  device.ops().attention(view(q, 20), kv, {&span, 1}, {1, 1.0F, 0}, view(out, 20));
  for (size_t row = 0; row < 20; ++row) {
    EXPECT_NEAR(out[row * kDim + 3], static_cast<float>(row) / 2, 1e-5);
  }
}

TEST(AttentionTest, RefusesWhatItCannotDo) {
  CpuDevice device({.threads = 1});
  std::vector<float> plane(16 * 4), q(64 * 4), out(64 * 4);
  const std::vector<int32_t> table{0}, outside{1};
  const KvLayerView kv{KvType::kF32,
                       1,
                       1,
                       4,
                       reinterpret_cast<std::byte*>(plane.data()),
                       reinterpret_cast<std::byte*>(plane.data())};
  const auto attend = [&](int64_t rows, int heads, const SequenceSpan& span) {
    device.ops().attention(view(q, rows), kv, {&span, 1}, {heads, 1.0F, 0}, view(out, rows));
  };
  EXPECT_NO_THROW(attend(4, 16, {0, 4, 0, table}));
  EXPECT_THROW(attend(4, 16, {0, 4, 0, outside}), Error);  // a block the cache does not have
  EXPECT_THROW(attend(4, 16, {0, 4, 14, table}), Error);   // past the table
  EXPECT_THROW(attend(4, 16, {1, 4, 0, table}), Error);    // past the rows
}

// The processor's best kernels compute the same as the portable one; parity tests compare the best
// ones with double precision.
TEST(AttentionTest, TheKernelChosenAgreesWithThePortableOne) {
  CpuDevice device({.threads = 2});
  ThreadPool pool(2);
  Workspace workspace(device, 2);
  const std::vector<int32_t> table = [] {
    std::vector<int32_t> blocks(40);
    std::iota(blocks.rbegin(), blocks.rend(), 0);
    return blocks;
  }();
  for (const KvType type : kAllKvTypes) {
    for (const int dim : {8, 24, 64, 80, 96, 112, 128, 256}) {
      for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {3, 1}, {8, 2}, {8, 1}}) {
        for (const auto& [start, rows] :
             {std::pair{599, 1}, {255, 1}, {0, 17}, {250, 12}, {0, 140}}) {
          const int64_t width = int64_t{kv_heads} * dim, q_width = int64_t{heads} * dim;
          KvLayerView kv{type, 40, kv_heads, dim, nullptr, nullptr};
          std::vector<std::byte> k(static_cast<size_t>(40 * kv.block_bytes()), std::byte{0xff}),
              v(k);
          kv.k = k.data();
          kv.v = v.data();
          std::vector<float> x(static_cast<size_t>((start + rows) * width)), y(x);
          fill_random(DType::kF32, reinterpret_cast<std::byte*>(x.data()),
                      static_cast<int64_t>(x.size()), 1, 1);
          fill_random(DType::kF32, reinterpret_cast<std::byte*>(y.data()),
                      static_cast<int64_t>(y.size()), 2, 1);
          const SequenceSpan all{0, start + rows, 0, table}, span{0, rows, start, table};
          device.ops().kv_append(view(x, start + rows), view(y, start + rows), kv, {&all, 1});
          std::vector<float> q(static_cast<size_t>(rows * q_width)), fast(q), portable(q);
          fill_random(DType::kF32, reinterpret_cast<std::byte*>(q.data()),
                      static_cast<int64_t>(q.size()), 3, 1);
          const AttentionParams params{heads, 0.2F, start == 250 ? 100 : 0};
          cpu::attention(pool, workspace, view(q, rows), kv, {&span, 1}, params, view(fast, rows));
          cpu::attention_by(cpu::cut_kernels(type, false).front(), pool, workspace, view(q, rows),
                            kv, {&span, 1}, params, view(portable, rows));
          double error = 0, power = 0;
          for (size_t i = 0; i < fast.size(); ++i) {
            error += std::pow(double{fast[i]} - portable[i], 2);
            power += std::pow(double{portable[i]}, 2);
          }
          ASSERT_TRUE(std::isfinite(error));
          ASSERT_GT(power, 0);
          ASSERT_LE(error, (type == KvType::kF32 ? 1e-9 : 1e-5) * power)
              << kv_type_name(type) << " " << heads << "/" << kv_heads << " heads of " << dim
              << ", " << start << " + " << rows;
        }
      }
    }
  }
}

// Falcon-7B has 71 query heads for its only KV head, more than a tile holds.
TEST(AttentionTest, TakesAnyNumberOfHeadsForOneKvHead) {
  CpuDevice device({.threads = 2});
  constexpr int kHeads = 71, kDim = 64;
  constexpr int32_t kRows = 5, kStart = 251;
  std::vector<int32_t> table(16);
  std::iota(table.begin(), table.end(), 0);
  std::vector<std::byte> k(16 * kKvBlockTokens * kDim * 2), v(k.size());
  fill_random(DType::kF16, k.data(), 16 * kKvBlockTokens * kDim, 1, 1);
  fill_random(DType::kF16, v.data(), 16 * kKvBlockTokens * kDim, 2, 1);
  const KvLayerView kv{KvType::kF16, 16, 1, kDim, k.data(), v.data()};
  std::vector<float> q(size_t{kRows} * kHeads * kDim), out(q.size()), partitioned(q.size());
  fill_random(DType::kF32, reinterpret_cast<std::byte*>(q.data()), std::ssize(q), 3, 1);
  const SequenceSpan span{0, kRows, kStart, table};
  const AttentionParams params{kHeads, 0.125F, 0};
  device.ops().attention(view(q, kRows), kv, {&span, 1}, params, view(out, kRows));

  const int64_t columns = softmax_state_columns(kHeads, kDim);
  std::vector<float> memory(static_cast<size_t>(kRows * columns));
  const SoftmaxState state{view(memory, kRows), kHeads, kDim};
  PartitionedAttention& ops = device.partitioned_attention();
  ops.clear_state(state);
  ops.attend_partition(view(q, kRows), kv, {&span, 1}, params, state);
  ops.finish_state(state, view(partitioned, kRows));

  for (int head = 0; head < kHeads; ++head) {
    std::vector<float> alone(size_t{kRows} * kDim);
    device.ops().attention(view(q, kRows).columns(int64_t{head} * kDim, kDim), kv, {&span, 1},
                           {1, 0.125F, 0}, view(alone, kRows));
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t i = 0; i < kDim; ++i) {
        const size_t at = (row * kHeads + static_cast<size_t>(head)) * kDim + i;
        ASSERT_NEAR(out[at], alone[row * kDim + i], 1e-5) << head;
        ASSERT_NEAR(partitioned[at], alone[row * kDim + i], 1e-5) << head;
      }
    }
  }
}

// Rows that come with others may take another kernel; deterministic ones never do.
TEST(AttentionTest, DeterministicRowsDoNotDependOnTheirNumber) {
  CpuDevice device({.threads = 2});
  device.ops().set_deterministic(true);
  constexpr int kDim = 64, kHeads = 4;
  constexpr int32_t kRows = 64;
  std::vector<int32_t> table(kRows / kKvBlockTokens);
  std::iota(table.begin(), table.end(), 0);
  for (const KvType type : kAllKvTypes) {
    KvLayerView kv{type, kRows / kKvBlockTokens, 1, kDim, nullptr, nullptr};
    std::vector<std::byte> k(static_cast<size_t>(kv.blocks * kv.block_bytes())), v(k);
    kv.k = k.data();
    kv.v = v.data();
    std::vector<float> x(kRows * kDim), q(kRows * kHeads * kDim), all(q), one(kHeads * kDim);
    fill_random(DType::kF32, reinterpret_cast<std::byte*>(x.data()), kRows * kDim, 1, 1);
    fill_random(DType::kF32, reinterpret_cast<std::byte*>(q.data()), kRows * kHeads * kDim, 2, 1);
    const SequenceSpan span{0, kRows, 0, table}, last{0, 1, kRows - 1, table};
    device.ops().kv_append(view(x, kRows), view(x, kRows), kv, {&span, 1});
    device.ops().attention(view(q, kRows), kv, {&span, 1}, {kHeads, 0.1F, 0}, view(all, kRows));
    std::vector<float> last_q(q.end() - kHeads * kDim, q.end());
    device.ops().attention(view(last_q, 1), kv, {&last, 1}, {kHeads, 0.1F, 0}, view(one, 1));
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.end() - kHeads * kDim))
        << kv_type_name(type);
  }
}

// Sums in halves overflow long before floats do. The result is then that of the kernel that adds to
// floats, as for keys and values that are infinite themselves.
TEST(AttentionTest, WhatHalvesCannotHoldIsAddedInFloats) {
  CpuDevice device({.threads = 1});
  ThreadPool pool(1);
  Workspace workspace(device, 1);
  constexpr int kDim = 64, kHeads = 8;
  constexpr int32_t kTokens = 40;
  const std::vector<int32_t> table{2, 0, 1};
  struct Change {
    const char* what;
    bool key;
    float value;
    bool same;  // the same as in deterministic mode, to the bit
  };
  for (const Change& change : {Change{"nothing", true, 0.5F, false},
                               {"a large key", true, 60000, false},
                               {"a large negative key", true, -60000, false},
                               {"an infinite key", true, INFINITY, true},
                               {"a large value", false, 60000, true},
                               {"an infinite value", false, -INFINITY, true},
                               {"a value that is no number", false, NAN, true}}) {
    KvLayerView kv{KvType::kF16, 3, 1, kDim, nullptr, nullptr};
    std::vector<std::byte> k(static_cast<size_t>(3 * kv.block_bytes()), std::byte{0xff}), v(k);
    kv.k = k.data();
    kv.v = v.data();
    std::vector<float> x(kTokens * kDim), y(x), q(kHeads * kDim);
    fill_random(DType::kF32, reinterpret_cast<std::byte*>(x.data()), kTokens * kDim, 1, 1);
    fill_random(DType::kF32, reinterpret_cast<std::byte*>(y.data()), kTokens * kDim, 2, 1);
    fill_random(DType::kF32, reinterpret_cast<std::byte*>(q.data()), kHeads * kDim, 3, 1);
    for (int c = 0; c < kDim; ++c) {
      (change.key ? x : y)[17 * kDim + static_cast<size_t>(c)] = change.value;
    }
    const SequenceSpan all{0, kTokens, 0, table}, last{0, 1, kTokens - 1, table};
    device.ops().kv_append(view(x, kTokens), view(y, kTokens), kv, {&all, 1});
    std::vector<float> fast(q.size()), exact(q.size());
    const AttentionParams params{kHeads, 0.125F, 0};
    cpu::attention(pool, workspace, view(q, 1), kv, {&last, 1}, params, view(fast, 1), false);
    cpu::attention(pool, workspace, view(q, 1), kv, {&last, 1}, params, view(exact, 1), true);
    double error = 0, power = 0;
    for (size_t i = 0; i < fast.size(); ++i) {
      if (change.same) {
        ASSERT_TRUE(fast[i] == exact[i] || (std::isnan(fast[i]) && std::isnan(exact[i])))
            << change.what << ", element " << i << ": " << fast[i] << ", not " << exact[i];
      } else {
        error += std::pow(double{fast[i]} - exact[i], 2);
        power += std::pow(double{exact[i]}, 2);
      }
    }
    EXPECT_LE(error, 1e-5 * power) << change.what;
  }
}

TEST(AttentionTest, NoRowsIsFine) {
  CpuDevice device({.threads = 2});
  std::vector<float> q(8), out(8, 5);
  const KvLayerView kv{KvType::kF32, 0, 1, 8, nullptr, nullptr};
  device.ops().attention(view(q, 1), kv, {}, {1, 1.0F, 0}, view(out, 1));
  EXPECT_EQ(out[0], 5);
}

}  // namespace
}  // namespace spillway
