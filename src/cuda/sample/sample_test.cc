// SPDX-License-Identifier: Apache-2.0
// Tests sampling on the GPU where the right tokens are known, and log-probabilities: with rows of
// every length and alignment, so that what matters lies before, in, between and after the vectors
// that the kernels read.
#include "cuda/sample/sample.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "cuda/cuda.h"
#include "cuda/cuda_handles.h"
#include "cuda/dequantize/quant_test_data.h"
#include "cuda/sample/logprobs.h"
#include "device/device.h"

namespace spillway::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

SampleRowArgs greedy() { return {0, 1, 0, 0, 0, 0, 0}; }

// Returns the lowest id with the largest value; -inf never counts.
int32_t best_of(const std::vector<float>& row) {
  int32_t best = -1;
  float top = -kInf;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] > top) top = row[i], best = static_cast<int32_t>(i);
  }
  return best;
}

// Rows of equal length on the GPU, `offset` floats after a multiple of 16 bytes, with `padding`
// floats between them.
class LogitRows {
 public:
  LogitRows(const std::vector<std::vector<float>>& rows, size_t offset, size_t padding)
      : host_(on_host(rows, offset, padding)),
        on_gpu_(host_.data(), host_.size() * sizeof(float)),
        view_{DType::kF32, static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size()),
              static_cast<int64_t>(rows[0].size() + padding),
              on_gpu_.data() + offset * sizeof(float)} {}

  const Activations& view() const { return view_; }
  bool guards_are_whole() const { return on_gpu_.guards_are_whole(); }
  bool are_as_they_were() const {
    const std::vector<std::byte> now = on_gpu_.read();
    return std::memcmp(now.data(), host_.data(), now.size()) == 0;
  }

 private:
  static std::vector<float> on_host(const std::vector<std::vector<float>>& rows, size_t offset,
                                    size_t padding) {
    const size_t stride = rows[0].size() + padding;
    // The values around the rows would win if they were read.
    std::vector<float> host(offset + rows.size() * stride + 8, 1e30F);
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy(rows[i].begin(), rows[i].end(), host.data() + offset + i * stride);
    return host;
  }

  std::vector<float> host_;
  GuardedBytes on_gpu_;
  Activations view_;
};

class SampleTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }

  // Arguments and ids are in pinned memory, as in CudaOps.
  static std::vector<int32_t> drawn(const std::vector<std::vector<float>>& rows,
                                    const std::vector<SampleRowArgs>& args,
                                    const std::vector<LogitAdjustment>& adjustments = {},
                                    size_t offset = 0, size_t padding = 0) {
    const LogitRows logits(rows, offset, padding);
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
    const auto draw = [&](ReplacedLogit* replaced) -> std::vector<int32_t> {
      sample(logits.view(), pinned_args, adjustments.empty() ? nullptr : pinned_adjustments,
             replaced, ids, nullptr);
      SPW_CUDA_CHECK(cudaDeviceSynchronize());
      EXPECT_TRUE(logits.guards_are_whole());
      return {ids, ids + rows.size()};
    };
    if (adjustments.empty()) return draw(nullptr);
    // The first draw restores the logits, so that the second one samples from the same.
    const GuardedBytes replaced(adjustments.size() * sizeof(ReplacedLogit));
    const std::vector<int32_t> first = draw(reinterpret_cast<ReplacedLogit*>(replaced.data()));
    EXPECT_TRUE(replaced.guards_are_whole());
    EXPECT_TRUE(logits.are_as_they_were());
    EXPECT_EQ(draw(nullptr), first);
    EXPECT_FALSE(logits.are_as_they_were());
    return first;
  }

  // Compares logprobs() for the rows and ids that `asked` lists with the definition in double
  // precision.
  static void expect_logprobs(const std::vector<std::vector<float>>& rows,
                              const std::vector<int32_t>& ids, std::vector<LogprobsRow> asked,
                              size_t offset, size_t padding) {
    const LogitRows logits(rows, offset, padding);
    int32_t all = 0;
    for (LogprobsRow& one : asked) {
      one.count = std::min(one.count, static_cast<int32_t>(rows[0].size()));
      one.first = all;
      all += one.count;
    }
    const GuardedBytes asked_gpu(asked.data(), asked.size() * sizeof(LogprobsRow));
    const GuardedBytes ids_gpu(ids.data(), ids.size() * sizeof(int32_t));
    const GuardedBytes chosen_gpu(asked.size() * sizeof(float));
    const GuardedBytes top_gpu(static_cast<size_t>(all) * sizeof(TokenLogprob));
    logprobs(logits.view(), static_cast<int64_t>(asked.size()),
             reinterpret_cast<const LogprobsRow*>(asked_gpu.data()),
             reinterpret_cast<const int32_t*>(ids_gpu.data()),
             reinterpret_cast<float*>(chosen_gpu.data()),
             reinterpret_cast<TokenLogprob*>(top_gpu.data()), nullptr);
    SPW_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_TRUE(logits.are_as_they_were() && logits.guards_are_whole());
    EXPECT_TRUE(chosen_gpu.guards_are_whole() && top_gpu.guards_are_whole());
    std::vector<float> chosen(asked.size());
    std::memcpy(chosen.data(), chosen_gpu.read().data(), chosen.size() * sizeof(float));
    std::vector<TokenLogprob> top(static_cast<size_t>(all));
    std::memcpy(top.data(), top_gpu.read().data(), top.size() * sizeof(TokenLogprob));
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto row = static_cast<size_t>(asked[i].row);
      SCOPED_TRACE(testing::Message() << "row " << row << " of " << rows[row].size() << ", "
                                      << asked[i].count << " requested, " << offset << " behind");
      const TokenLogprob* const own = top.data() + asked[i].first;
      if (ids[row] < 0) {  // nothing is written: the memory is still poisoned
        EXPECT_TRUE(std::isnan(chosen[i]));
        for (int32_t j = 0; j < asked[i].count; ++j) EXPECT_EQ(own[j].id, -1);
        continue;
      }
      expect_same({chosen[i], {own, own + asked[i].count}},
                  compute_logprobs(rows[row], ids[row], asked[i].count));
    }
  }

  // A thread adds its share of exponentials in F32, each of which is off by 2 ulp: together a few
  // units of 2^-24; then there is one rounding of the result.
  static void expect_same(const Logprobs& got, const Logprobs& want) {
    const auto expect_near = [](float a, float b) {
      if (std::isinf(b)) {
        EXPECT_EQ(a, b);
      } else {
        EXPECT_NEAR(a, b, 2e-6F * (1 + std::fabs(b)));
      }
    };
    expect_near(got.chosen, want.chosen);
    ASSERT_EQ(got.top.size(), want.top.size());
    for (size_t i = 0; i < want.top.size(); ++i) {
      EXPECT_EQ(got.top[i].id, want.top[i].id) << i;
      expect_near(got.top[i].logprob, want.top[i].logprob);
    }
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
  // These are around the ends of vectors, of what a round of the thread block reads, and of the
  // row.
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
  add({{77, 0, 8, 0}}, 0);      // 4 / 8 is below the other logits
  add({{77, -kInf, 1, 0}}, 0);  // forbidden
  add({{77, 0, 1, 3.5F}, {4, 0, 1, -0.5F}}, 4);
  // There are more adjustments than threads; all tokens but the last two are pushed down.
  std::vector<LogitAdjustment> many;
  for (int32_t id = 0; id < static_cast<int32_t>(kVocab) - 2; ++id) many.push_back({id, 0, 1, 9});
  add(many, static_cast<int32_t>(kVocab) - 2);
  EXPECT_EQ(drawn(rows, args, adjustments, 1, 3), want);
}

// Three tokens have a probability, in the same first digit of their bits, but top-k requests more.
TEST_F(SampleTest, TopKOfMoreThanThereAreKeepsAll) {
  std::vector<float> row(100, -200);
  row[10] = 10, row[20] = 9, row[30] = 8.5F;  // 63%, 23% and 14%
  const std::vector<double> uniform = {0.3, 0.75, 0.95};
  const std::vector<int32_t> want = {10, 20, 30};
  for (const int32_t top_k : {3, 4, 5, 50, 99}) {
    std::vector<SampleRowArgs> args;
    for (const double u : uniform) args.push_back({1, 1, 0, top_k, u, 0, 0});
    EXPECT_EQ(drawn({row, row, row}, args), want) << top_k;
  }
}

TEST_F(SampleTest, LogprobsAreThoseOfDoublePrecision) {
  for (const size_t vocab : {1, 2, 5, 99, 100, 101, 1024, 4099, 32001, 65541}) {
    for (size_t offset = 0; offset < 4; ++offset) {
      std::vector<std::vector<float>> rows;
      std::vector<int32_t> ids;
      std::vector<LogprobsRow> asked;
      for (const int32_t count : {0, 1, 5, kMostLogprobs}) {
        asked.push_back({static_cast<int32_t>(rows.size()), count, 0});
        ids.push_back(static_cast<int32_t>((rows.size() * 7919 + 13) % vocab));
        rows.push_back(random_values(vocab, 11 * vocab + rows.size(), 6));
      }
      expect_logprobs(rows, ids, asked, offset, offset + 1);
    }
  }
}

TEST_F(SampleTest, LogprobsOfEqualLogitsAreInTheOrderOfTheirIds) {
  for (const size_t vocab : {7, 4100, 33003}) {
    std::vector<std::vector<float>> rows(6, std::vector<float>(vocab, 0.25F));
    // More tokens than requested have the same value, or fewer.
    for (size_t i = 0; i < vocab; ++i) {
      rows[1][i] = static_cast<float>(i % 3);
      rows[2][i] = i % 50 == 3 ? 2.0F : 1.0F;
      rows[3][i] = i % 2 == 0 ? 0.0F : -0.0F;  // equal
      if (i != vocab / 2) rows[4][i] = -kInf;  // no probability: they follow the one that has
      rows[5][i] = -static_cast<float>(i % 1000);
    }
    const auto middle = static_cast<int32_t>(vocab / 2);
    const std::vector<int32_t> ids(rows.size(), middle);
    for (const int32_t count : {1, 2, 6, 34, kMostLogprobs}) {
      std::vector<LogprobsRow> asked;
      for (int32_t i = 0; i < static_cast<int32_t>(rows.size()); ++i)
        asked.push_back({i, count, 0});
      expect_logprobs(rows, ids, asked, 3, 2);
    }
  }
}

TEST_F(SampleTest, LogprobsAreOfTheRowsThatAskAndHaveAToken) {
  constexpr size_t kVocab = 5001;
  std::vector<std::vector<float>> rows;
  for (size_t i = 0; i < 7; ++i) rows.push_back(random_values(kVocab, i, 3));
  rows[4].assign(kVocab, kNan);
  const std::vector<int32_t> ids = {17, 5000, 0, 2500, -1, 4999, 3};
  expect_logprobs(rows, ids, {{5, 3, 0}}, 0, 0);
  expect_logprobs(rows, ids, {{1, 0, 0}, {3, kMostLogprobs, 0}, {4, 5, 0}, {6, 20, 0}}, 1, 1);
}

// Tests all of CudaOps::sample(), where some rows request logprobs, with penalties and without.
TEST_F(SampleTest, OpsGiveLogprobsOfLogitsBeforeTheirAdjustments) {
  constexpr size_t kVocab = 4099, kRows = 8;
  const std::unique_ptr<Device> device = make_cuda_device({});
  const Buffer logits = device->allocate(kRows * kVocab * sizeof(float), MemoryTag::kWorkspace);
  const Activations view{DType::kF32, kRows, kVocab, kVocab, logits.data()};
  // Larger requests follow smaller ones, so that memory grows.
  for (const size_t adjusted : {0, 3, 2000}) {
    std::vector<float> host = random_values(kRows * kVocab, 5 + adjusted, 3);
    host[6 * kVocab + 77] = kNan;
    device->copy_to_device(logits.data(), reinterpret_cast<const std::byte*>(host.data()),
                           host.size() * sizeof(float));
    std::vector<std::vector<LogitAdjustment>> adjustments(kRows);
    std::vector<SampleRow> rows(kRows);
    for (size_t i = 0; i < kRows; ++i) {
      if (i % 3 != 0) {
        const float* const row = host.data() + i * kVocab;
        int32_t best = 1;  // among odd ids; even ones are adjusted from the first on
        for (int32_t id = 1; id < static_cast<int32_t>(kVocab); id += 2) {
          if (row[id] > row[best]) best = id;
        }
        for (size_t j = 0; j < adjusted; ++j)
          adjustments[i].push_back({static_cast<int32_t>(j * 2), 0.5F, 1.3F, 2});
        // The best token is pushed down, so that the chosen and the most likely token differ.
        if (adjusted > 0) adjustments[i].push_back({best, 0, 1, 50});
      }
      rows[i].adjustments = adjustments[i];
      rows[i].temperature = i % 2 == 0 ? 0 : 1.0F;
      rows[i].uniform = 0.37;
      constexpr int kLogprobs[kRows] = {-1, 0, 5, kMostLogprobs, -1, 20, 5, 1};
      rows[i].logprobs = kLogprobs[i];
    }
    std::vector<SampledToken> tokens(kRows);
    device->ops().sample(view, rows, tokens);
    for (size_t i = 0; i < kRows; ++i) {
      SCOPED_TRACE(testing::Message() << "row " << i << ", " << adjusted << " adjusted");
      if (i == 6) {
        EXPECT_EQ(tokens[i].id, -1);
        EXPECT_TRUE(tokens[i].logprobs.top.empty());
        continue;
      }
      ASSERT_GE(tokens[i].id, 0);
      ASSERT_LT(tokens[i].id, static_cast<int32_t>(kVocab));
      if (rows[i].logprobs < 0) {
        EXPECT_TRUE(tokens[i].logprobs.top.empty());
        continue;
      }
      const std::span<const float> row(host.data() + i * kVocab, kVocab);
      expect_same(tokens[i].logprobs, compute_logprobs(row, tokens[i].id, rows[i].logprobs));
    }
  }
}

}  // namespace
}  // namespace spillway::cuda
