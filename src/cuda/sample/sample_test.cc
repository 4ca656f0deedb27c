// SPDX-License-Identifier: Apache-2.0
// Tokens drawn on the GPU where it is known which they are: rows of every length and alignment, so
// that what matters lies before, in, between and behind the vectors that the kernel reads.
#include "cuda/sample/sample.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "cuda/cuda_handles.h"
#include "cuda/dequantize/quant_test_data.h"

namespace spillway::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

SampleRowArgs greedy() { return {0, 1, 0, 0, 0, 0, 0}; }

// The largest value with the lowest id; -inf never.
int32_t best_of(const std::vector<float>& row) {
  int32_t best = -1;
  float top = -kInf;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] > top) top = row[i], best = static_cast<int32_t>(i);
  }
  return best;
}

class SampleTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }

  // Rows of one length, `offset` floats behind a multiple of 16 bytes and `padding` apart.
  // Arguments and ids lie in pinned memory, as those of CudaOps do.
  static std::vector<int32_t> drawn(const std::vector<std::vector<float>>& rows,
                                    const std::vector<SampleRowArgs>& args,
                                    const std::vector<LogitAdjustment>& adjustments = {},
                                    size_t offset = 0, size_t padding = 0) {
    const size_t vocab = rows[0].size(), stride = vocab + padding;
    // What is around the rows would win if it were looked at.
    std::vector<float> host(offset + rows.size() * stride + 8, 1e30F);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy(rows[i].begin(), rows[i].end(), host.data() + offset + i * stride);
    }
    const GuardedBytes logits(host.data(), host.size() * sizeof(float));
    const size_t args_bytes = args.size() * sizeof(SampleRowArgs);
    const size_t adjustment_bytes = adjustments.size() * sizeof(LogitAdjustment);
    const PinnedMemory memory =
        make_pinned(args_bytes + adjustment_bytes + rows.size() * sizeof(int32_t));
    auto* const pinned = static_cast<std::byte*>(memory.get());
    auto* const pinned_args = reinterpret_cast<SampleRowArgs*>(pinned);
    auto* const pinned_adjustments = reinterpret_cast<LogitAdjustment*>(pinned + args_bytes);
    auto* const ids = reinterpret_cast<int32_t*>(pinned + args_bytes + adjustment_bytes);
    std::copy(args.begin(), args.end(), pinned_args);
    std::copy(adjustments.begin(), adjustments.end(), pinned_adjustments);
    const Activations view{DType::kF32, static_cast<int64_t>(rows.size()),
                           static_cast<int64_t>(vocab), static_cast<int64_t>(stride),
                           logits.data() + offset * sizeof(float)};
    sample(view, pinned_args, adjustments.empty() ? nullptr : pinned_adjustments, ids, nullptr);
    SPW_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(logits.guards_are_whole());
    return {ids, ids + rows.size()};
  }
};

TEST_F(SampleTest, TheBestIsFoundInRowsOfEveryLengthAndAlignment) {
  for (const size_t vocab : {1, 2, 3, 4, 5, 7, 8, 4095, 4096, 4099, 32000, 32001, 32767, 65541}) {
    for (size_t offset = 0; offset < 4; ++offset) {
      std::vector<std::vector<float>> rows;
      for (size_t i = 0; i < 3; ++i) rows.push_back(random_values(vocab, 7 * vocab + i));
      const auto ids = drawn(rows, {greedy(), greedy(), greedy()}, {}, offset, offset + 1);
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(ids[i], best_of(rows[i])) << vocab << " logits, " << offset << " behind";
      }
    }
  }
}

TEST_F(SampleTest, OfEqualLogitsTheLowestIdIsTakenAndMinusInfinityNever) {
  constexpr size_t kVocab = 33003;
  // Around the ends of vectors, of what a round of the block reads, and of the row.
  const std::vector<size_t> places = {0,    1,    2,     3,     4,     5,     4093,
                                      4095, 4096, 32764, 32767, 32768, 33000, 33002};
  for (size_t offset = 0; offset < 4; ++offset) {
    std::vector<std::vector<float>> rows;
    for (const size_t at : places) {
      std::vector<float> row(kVocab, -1);
      for (const size_t other : places) {
        row[other] = other < at ? -kInf : 5;
      }
      rows.push_back(row);
    }
    const std::vector<SampleRowArgs> args(rows.size(), greedy());
    const auto ids = drawn(rows, args, {}, offset, 2);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(ids[i], static_cast<int32_t>(places[i])) << offset << " behind";
    }
  }
}

TEST_F(SampleTest, RowsThatAreNotAllNumbersHaveNoToken) {
  for (const size_t vocab : {1, 6, 4100, 33003}) {
    std::vector<std::vector<float>> rows(7, std::vector<float>(vocab, -kInf));
    rows[0].assign(vocab, kNan);
    rows[2].back() = kInf;
    rows[3].back() = -3;
    rows[4].assign(vocab, 1);
    rows[4][vocab / 2] = kNan;
    rows[5].assign(vocab, 1);
    rows[5][vocab / 3] = kInf;
    rows[6].assign(vocab, 1);
    rows[6].back() = -kNan;
    std::vector<SampleRowArgs> args(rows.size(), greedy());
    const std::vector<int32_t> want = {-1, -1, -1, static_cast<int32_t>(vocab) - 1, -1, -1, -1};
    EXPECT_EQ(drawn(rows, args), want);
    for (SampleRowArgs& row : args) row.temperature = 1, row.top_p = 0.9F, row.top_k = 3;
    EXPECT_EQ(drawn(rows, args, {}, 1, 1), want);
  }
}

TEST_F(SampleTest, EqualTokensAreDrawnInTheOrderOfTheirIds) {
  for (const int vocab : {1, 5, 1024, 4099, 32003}) {
    for (const int offset : {0, 3}) {
      std::vector<std::vector<float>> rows;
      std::vector<SampleRowArgs> args;
      std::vector<int32_t> want;
      const auto add = [&](SampleRowArgs row, int kept) {
        for (const int id : {0, kept / 2, kept - 1}) {
          row.uniform = (id + 0.5) / kept;
          rows.emplace_back(vocab, 0.25F);
          args.push_back(row);
          want.push_back(id);
        }
      };
      add({1, 1, 0, 0, 0, 0, 0}, vocab);
      add({0.5F, 1, 0.3F, 0, 0, 0, 0}, vocab);
      add({2, 1, 0, (vocab + 2) / 3, 0, 0, 0}, (vocab + 2) / 3);
      add({1, 0.5F, 0, 0, 0, 0, 0}, (vocab + 1) / 2);
      EXPECT_EQ(drawn(rows, args, {}, static_cast<size_t>(offset), 1), want) << vocab;
    }
  }
}

TEST_F(SampleTest, AdjustmentsComeFirstAndAreOfTheirRow) {
  constexpr size_t kVocab = 5001;
  std::vector<LogitAdjustment> adjustments;
  std::vector<SampleRowArgs> args;
  std::vector<std::vector<float>> rows;
  std::vector<int32_t> want;
  const auto add = [&](const std::vector<LogitAdjustment>& own, int32_t id) {
    SampleRowArgs row = greedy();
    row.first_adjustment = static_cast<int32_t>(adjustments.size());
    row.adjustments = static_cast<int32_t>(own.size());
    args.push_back(row);
    rows.emplace_back(kVocab, 1.0F);
    rows.back()[77] = 4;
    adjustments.insert(adjustments.end(), own.begin(), own.end());
    want.push_back(id);
  };
  add({{5000, 3.5F, 1, 0}}, 5000);
  add({}, 77);
  add({{77, 0, 8, 0}}, 0);      // 4 / 8 is below the others
  add({{77, -kInf, 1, 0}}, 0);  // forbidden
  add({{77, 0, 1, 3.5F}, {4, 0, 1, -0.5F}}, 4);
  // More than the block has threads: all but the last two are taken away.
  std::vector<LogitAdjustment> many;
  for (int32_t id = 0; id < static_cast<int32_t>(kVocab) - 2; ++id) many.push_back({id, 0, 1, 9});
  add(many, static_cast<int32_t>(kVocab) - 2);
  EXPECT_EQ(drawn(rows, args, adjustments, 1, 3), want);
}

}  // namespace
}  // namespace spillway::cuda
