// SPDX-License-Identifier: Apache-2.0
// A row's result is the same bits alone and among others, in any slice, with any number of threads.
#include <cmath>
#include <string>

#include "tests/parity/paged_kv.h"
#include "tests/parity/parity_device.h"

namespace spillway::parity {
namespace {

std::vector<float> rows_of(const std::vector<float>& values, int64_t cols, int64_t first,
                           int64_t count) {
  return {values.begin() + first * cols, values.begin() + (first + count) * cols};
}

class LinearInvarianceTest : public testing::TestWithParam<StoredCase> {};

TEST_P(LinearInvarianceTest, BatchSliceAndThreadsDoNotChangeABit) {
  const auto& [kind, type, layout] = GetParam();
  for (const int64_t k : {int64_t{768}, int64_t{1536}, is_quantized(type) ? 2304 : int64_t{1111}}) {
    const int64_t tokens = 23, n = 77;
    const auto x = random_floats(tokens * k, 2);
    std::vector<float> reference;
    for (const int threads : {1, 2, 3}) {
      TestDevice device(kind, threads);
      device.ops().set_deterministic(true);
      const Weights w = random_weights(device, type, n, k, 1, layout);
      const Weights bias = random_weights(device, DType::kF32, 1, n, 4);
      const Matrix input(device, tokens, k, x);
      const auto run = [&](int64_t first, int64_t count, int64_t row, int64_t rows) {
        const Matrix out(device, count, rows);
        const WeightView part{DType::kF32, 1, rows, bias.view().data + row * 4};
        device.ops().linear(w.view().slice(row, rows), part, input.view().row_range(first, count),
                            out.view(), LinearMode::kStore);
        return out.read();
      };
      const auto all = run(0, tokens, 0, n);
      if (reference.empty()) reference = all;
      ASSERT_TRUE(same_bits(all, reference)) << threads << " threads";
      for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
        const int64_t first = (count * 5) % (tokens - count);
        ASSERT_TRUE(same_bits(run(first, count, 0, n), rows_of(reference, n, first, count)))
            << count << " tokens from " << first << ", " << threads << " threads, k " << k;
      }
      for (const int64_t row : {0, 16, 48, 5}) {
        // Packed matrices are cut at groups of 16 rows.
        const bool packed = layout == WeightLayout::kGroups16;
        if (packed && row % kGroupRows != 0) continue;
        const int64_t rows = packed && row < 48 ? 32 : 29;
        const auto slice = run(3, 2, row, rows), one = run(3, 1, row, rows);
        for (int64_t i = 0; i < rows; ++i) {
          const auto j = static_cast<size_t>(i);
          ASSERT_EQ(slice[j], reference[static_cast<size_t>(3 * n + row + i)]);
          ASSERT_EQ(one[j], slice[j]);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LinearInvarianceTest, testing::ValuesIn(stored_cases()),
                         stored_case_name);

class AttentionInvarianceTest : public testing::TestWithParam<DeviceKind> {
 protected:
  // All rows of one sequence, in chunks of `chunk`.
  static std::vector<float> run(int threads, int32_t chunk, int window, KvType type,
                                int32_t companions) {
    constexpr int kHeads = 6, kKvHeads = 2, kDim = 40;
    constexpr int32_t kTokens = 290;
    TestDevice device(GetParam(), threads);
    device.ops().set_deterministic(true);
    const auto q = random_floats(kTokens * kHeads * kDim, 1);
    const auto k = random_floats(kTokens * kKvHeads * kDim, 2);
    const auto v = random_floats(kTokens * kKvHeads * kDim, 3);
    PagedKv kv(device, type, kKvHeads, kDim, 100);
    const auto table = kv.take_blocks(kTokens), other = kv.take_blocks(100);
    std::vector<float> result;
    for (int32_t start = 0; start < kTokens; start += chunk) {
      const int32_t rows = std::min(chunk, kTokens - start), all = rows + companions;
      // Another sequence in the same step (its rows repeat ours) must not matter.
      const auto with_companions = [&](const std::vector<float>& from, int64_t cols) {
        auto part = rows_of(from, cols, start, rows);
        const auto more = rows_of(from, cols, 0, companions);
        part.insert(part.end(), more.begin(), more.end());
        return part;
      };
      const Matrix qs(device, all, kHeads * kDim, with_companions(q, kHeads * kDim));
      const Matrix ks(device, all, kKvHeads * kDim, with_companions(k, kKvHeads * kDim));
      const Matrix vs(device, all, kKvHeads * kDim, with_companions(v, kKvHeads * kDim));
      const Matrix out(device, all, kHeads * kDim);
      std::vector<SequenceSpan> spans{{0, rows, start, table}};
      if (companions > 0) spans.push_back({rows, companions, 0, other});
      device.ops().kv_append(ks.view(), vs.view(), kv.view(), spans);
      device.ops().attention(qs.view(), kv.view(), spans, {kHeads, 0.2F, window}, out.view());
      const auto part = rows_of(out.read(), kHeads * kDim, 0, rows);
      result.insert(result.end(), part.begin(), part.end());
    }
    return result;
  }
};

TEST_P(AttentionInvarianceTest, ChunksBatchAndThreadsDoNotChangeABit) {
  for (const KvType type : kAllKvTypes) {
    for (const int window : {0, 90}) {
      const auto reference = run(1, 290, window, type, 0);
      for (const int threads : {1, 2, 3}) {
        for (const int32_t chunk : {1, 7, 64, 256, 290}) {
          if (chunk == 1 && threads != 2) continue;  // one token at a time takes long
          ASSERT_TRUE(same_bits(run(threads, chunk, window, type, chunk == 7 ? 40 : 0), reference))
              << threads << " threads, chunks of " << chunk << ", window " << window;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionInvarianceTest, testing::ValuesIn(device_kinds()),
                         kind_name);

class RowInvarianceTest : public ParityTest {};

TEST_P(RowInvarianceTest, RowOpsDoNotSeeTheirNeighbours) {
  const int64_t rows = 19, dim = 1003;
  const auto x = random_floats(rows * dim, 1);
  for (const int threads : {1, 2, 3}) {
    TestDevice device(GetParam(), threads);
    const Weights weight = random_weights(device, DType::kF32, 1, dim, 2);
    const Matrix input(device, rows, dim, x);
    const Matrix normed(device, rows, dim), gated(device, rows, dim);
    const auto run = [&](int64_t first, int64_t count) {
      const Activations in = input.view().row_range(first, count);
      device.ops().norm(NormKind::kLayer, in, weight.view(), {}, 1e-5F,
                        normed.view().row_range(first, count));
      device.ops().gated_activate(ActivationKind::kSilu, in, in,
                                  gated.view().row_range(first, count));
    };
    run(0, rows);
    const auto norm_all = normed.read(), gated_all = gated.read();
    for (int64_t i = 0; i < rows; ++i) run(i, 1);
    ASSERT_TRUE(same_bits(normed.read(), norm_all));
    ASSERT_TRUE(same_bits(gated.read(), gated_all));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RowInvarianceTest, testing::ValuesIn(device_kinds()), kind_name);

}  // namespace
}  // namespace spillway::parity
