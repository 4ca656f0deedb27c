// SPDX-License-Identifier: Apache-2.0
// Tests that a row's result has the same bits alone and among others, in any slice, with any number
// of threads.
#include <memory>
#include <string>

#include "tests/parity/paged_kv.h"
#include "tests/parity/parity_device.h"

namespace spillway::parity {
namespace {

std::vector<float> rows_of(const std::vector<float>& values, int64_t cols, int64_t first,
                           int64_t count) {
  return {values.begin() + first * cols, values.begin() + (first + count) * cols};
}

// Makes a device for each number of threads, in deterministic mode: results do not depend on the
// batch.
std::vector<std::unique_ptr<TestDevice>> deterministic_devices(const DeviceKind& kind) {
  std::vector<std::unique_ptr<TestDevice>> devices;
  for (const int threads : thread_counts(kind)) {
    devices.push_back(std::make_unique<TestDevice>(kind, threads));
    devices.back()->ops().set_deterministic(true);
  }
  return devices;
}

class LinearInvarianceTest : public testing::TestWithParam<StoredCase> {};

TEST_P(LinearInvarianceTest, BatchSliceAndThreadsDoNotChangeABit) {
  const auto& [kind, type, layout] = GetParam();
  const auto devices = deterministic_devices(kind);
  for (const int64_t k : {int64_t{768}, int64_t{1536}, is_quantized(type) ? 2304 : int64_t{1111}}) {
    const int64_t tokens = 83, n = 77;
    const auto x = random_floats(tokens * k, 2);
    std::vector<float> reference;
    for (size_t which = 0; which < devices.size(); ++which) {
      TestDevice& device = *devices[which];
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
      ASSERT_TRUE(same_bits(all, reference)) << "device " << which;
      for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 16, 65}) {
        const int64_t first = (count * 5) % (tokens - count);
        ASSERT_TRUE(same_bits(run(first, count, 0, n), rows_of(reference, n, first, count)))
            << count << " tokens from " << first << ", device " << which << ", k " << k;
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
  static constexpr int kHeads = 6, kKvHeads = 2, kDim = 40;
  static constexpr int kQWidth = kHeads * kDim, kKvWidth = kKvHeads * kDim;
  static constexpr int32_t kTokens = 290;

  void step(TestDevice& device, const PagedKv& kv, const Activations& q, const Activations& k,
            const Activations& v, const std::vector<SequenceSpan>& spans, int window,
            const Activations& out) const {
    device.ops().kv_append(k, v, kv.view(), spans);
    device.ops().attention(q, kv.view(), spans, {kHeads, 0.2F, window}, out);
  }

  // Returns the results of all rows of one sequence, in chunks of `chunk`.
  std::vector<float> run(TestDevice& device, int32_t chunk, int window, KvType type) const {
    PagedKv kv(device, type, kKvHeads, kDim, 30);
    const auto table = kv.take_blocks(kTokens);
    const Matrix q(device, kTokens, kQWidth, q_), k(device, kTokens, kKvWidth, k_),
        v(device, kTokens, kKvWidth, v_), out(device, kTokens, kQWidth);
    for (int32_t start = 0; start < kTokens; start += chunk) {
      const int32_t rows = std::min(chunk, kTokens - start);
      const auto part = [&](const Matrix& m) { return m.view().row_range(start, rows); };
      step(device, kv, part(q), part(k), part(v), {{0, rows, start, table}}, window, part(out));
    }
    out.expect_guards();
    return out.read();
  }

  // Returns the same with another sequence in every step, whose rows repeat the first ones of ours.
  std::vector<float> run_in_company(TestDevice& device, int32_t chunk, int window, KvType type,
                                    int32_t companions) const {
    PagedKv kv(device, type, kKvHeads, kDim, 40);
    const auto table = kv.take_blocks(kTokens), other = kv.take_blocks(companions);
    std::vector<float> result;
    for (int32_t start = 0; start < kTokens; start += chunk) {
      const int32_t rows = std::min(chunk, kTokens - start), all = rows + companions;
      const auto matrix = [&](const std::vector<float>& from, int64_t cols) {
        auto part = rows_of(from, cols, start, rows);
        const auto more = rows_of(from, cols, 0, companions);
        part.insert(part.end(), more.begin(), more.end());
        return Matrix(device, all, cols, part);
      };
      const Matrix q = matrix(q_, kQWidth), k = matrix(k_, kKvWidth), v = matrix(v_, kKvWidth);
      const Matrix out(device, all, kQWidth);
      step(device, kv, q.view(), k.view(), v.view(),
           {{0, rows, start, table}, {rows, companions, 0, other}}, window, out.view());
      const auto part = rows_of(out.read(), kQWidth, 0, rows);
      result.insert(result.end(), part.begin(), part.end());
    }
    return result;
  }

  void check_chunks(KvType type) const {
    const auto devices = deterministic_devices(GetParam());
    for (const int window : {0, 90}) {
      const auto reference = run(*devices[0], kTokens, window, type);
      for (size_t which = 0; which < devices.size(); ++which) {
        TestDevice& device = *devices[which];
        const testing::Message where = testing::Message()
                                       << "device " << which << ", window " << window << ", "
                                       << kv_type_name(type) << ", chunks of ";
        for (const int32_t chunk : {1, 64, 256, 290}) {
          if (chunk == 1 && which != devices.size() / 2) continue;  // these take long
          ASSERT_TRUE(same_bits(run(device, chunk, window, type), reference)) << where << chunk;
        }
        ASSERT_TRUE(same_bits(run_in_company(device, 7, window, type, 40), reference))
            << where << "7, in company";
      }
    }
  }

 private:
  const std::vector<float> q_ = random_floats(kTokens * kQWidth, 1);
  const std::vector<float> k_ = random_floats(kTokens * kKvWidth, 2);
  const std::vector<float> v_ = random_floats(kTokens * kKvWidth, 3);
};

// Outside deterministic mode, too, the number of threads and the rest of the batch decide only how
// a prompt's rows are divided into work.
TEST_P(AttentionInvarianceTest, APromptHasTheSameBitsHoweverItIsShared) {
  for (const KvType type : kAllKvTypes) {
    for (const int window : {0, 90}) {
      std::vector<float> reference;
      for (const int threads : thread_counts(GetParam())) {
        TestDevice device(GetParam(), threads);
        const auto alone = run(device, kTokens, window, type);
        if (reference.empty()) reference = alone;
        const testing::Message where = testing::Message()
                                       << kv_type_name(type) << ", window " << window << ", "
                                       << threads << " threads";
        ASSERT_TRUE(same_bits(alone, reference)) << where;
        for (const int32_t companions : {17, 150}) {
          ASSERT_TRUE(
              same_bits(run_in_company(device, kTokens, window, type, companions), reference))
              << where << ", among " << companions;
        }
      }
    }
  }
}

TEST_P(AttentionInvarianceTest, ChunksBatchAndThreadsDoNotChangeABitOfF32) {
  check_chunks(KvType::kF32);
}
TEST_P(AttentionInvarianceTest, ChunksBatchAndThreadsDoNotChangeABitOfF16) {
  check_chunks(KvType::kF16);
}
TEST_P(AttentionInvarianceTest, ChunksBatchAndThreadsDoNotChangeABitOfBf16) {
  check_chunks(KvType::kBf16);
}
TEST_P(AttentionInvarianceTest, ChunksBatchAndThreadsDoNotChangeABitOfInt8) {
  check_chunks(KvType::kInt8);
}
TEST_P(AttentionInvarianceTest, ChunksBatchAndThreadsDoNotChangeABitOfInt4) {
  check_chunks(KvType::kInt4);
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionInvarianceTest, testing::ValuesIn(device_kinds()),
                         kind_name);

class RowInvarianceTest : public ParityTest {};

TEST_P(RowInvarianceTest, RowOpsDoNotSeeTheirNeighbours) {
  const int64_t rows = 19, dim = 1003;
  const auto x = random_floats(rows * dim, 1);
  for (const int threads : thread_counts(GetParam())) {
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
