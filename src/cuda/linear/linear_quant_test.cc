// SPDX-License-Identifier: Apache-2.0
#include "cuda/linear/linear_quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cuda/dequantize/quant_test_data.h"

namespace spillway::cuda {
namespace {

double activation(ActivationKind kind, double v) {
  switch (kind) {
    case ActivationKind::kRelu:
      return std::max(v, 0.0);
    case ActivationKind::kGelu:
      return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    case ActivationKind::kGeluTanh:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case ActivationKind::kSilu:
      return v / (1 + std::exp(-v));
  }
  return v;
}

// Describes one call.
struct Case {
  DType type = DType::kQ4_0;
  WeightLayout layout = WeightLayout::kGroups16;
  std::vector<int64_t> n = {83};  // rows of each part
  int64_t k = 1280;
  int64_t tokens = 1;
  Epilogue epilogue = Epilogue::kStore;
  ActivationKind kind = ActivationKind::kSilu;
  DType out = DType::kF32;
  bool bias = false;
  int64_t x_gap = 8;    // columns of x's buffer after the k columns of x
  int64_t out_gap = 3;  // the same for outputs
  bool odd_x = false;   // x has an address that fast kernels do not support

  bool operator==(const Case&) const = default;
};

struct Outcome {
  std::vector<std::vector<float>> parts;  // [tokens, n] as stored
  double worst_nmse = 0;
};

size_t elements(int64_t a, int64_t b) { return static_cast<size_t>(a * b); }

// Uses four sums, so that additions do not wait for each other.
double dot(const float* a, const float* b, int64_t count) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t j = 0; j < 4; ++j) sums[j] += static_cast<double>(a[i + j]) * b[i + j];
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(a[i]) * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The inputs of a case, and its products in double precision, which are costly and the same for
// every tuning.
struct Inputs {
  explicit Inputs(const Case& c);

  Case made_for;
  int64_t x_stride = 0;
  std::unique_ptr<GuardedBytes> x;
  std::byte* x_data = nullptr;
  std::vector<TestMatrix> matrices;
  std::vector<GuardedBytes> biases;
  std::vector<std::vector<double>> sums;  // [tokens, n] for each part
};

Inputs::Inputs(const Case& c) : made_for(c), x_stride(c.k + c.x_gap) {
  auto x_stored = stored_as(DType::kF16, random_values(elements(64, x_stride), 3));
  x_stored.resize(
      static_cast<size_t>(row_bytes(DType::kF16, x_stride) * std::min<int64_t>(c.tokens, 64)));
  while (static_cast<int64_t>(x_stored.size()) < row_bytes(DType::kF16, x_stride * c.tokens)) {
    x_stored.push_back(x_stored[x_stored.size() % 1000]);
  }
  const std::vector<float> x_values = values_of(DType::kF16, x_stored);
  x = std::make_unique<GuardedBytes>(x_stored.size() + 8);
  x_data = x->data() + (c.odd_x ? 2 : 0);
  SPW_CUDA_CHECK(cudaMemcpy(x_data, x_stored.data(), x_stored.size(), cudaMemcpyHostToDevice));
  for (size_t p = 0; p < c.n.size(); ++p) {
    matrices.push_back(TestMatrix::make(c.type, c.n[p], c.k, c.layout, 100 + p));
    const std::vector<float> bias = random_values(static_cast<size_t>(c.n[p]), 50 + p);
    biases.emplace_back(bias.data(), bias.size() * 4);
    std::vector<double>& sum = sums.emplace_back();
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t i = 0; i < c.n[p]; ++i) {
        sum.push_back(
            (c.bias ? bias[static_cast<size_t>(i)] : 0) +
            dot(matrices[p].values.data() + i * c.k, x_values.data() + t * x_stride, c.k));
      }
    }
  }
}

Outcome run(const Inputs& inputs, const QuantLinearTuning& tuning) {
  const Case& c = inputs.made_for;
  const int64_t out_stride = *std::max_element(c.n.begin(), c.n.end()) + c.out_gap;
  const size_t parts = c.n.size();
  LinearCall call;
  call.count = static_cast<int>(parts);
  call.x = {DType::kF16, c.tokens, c.k, inputs.x_stride, inputs.x_data};
  call.epilogue = c.epilogue;
  call.activation = c.kind;
  std::vector<GuardedBytes> outs;
  const std::vector<float> before = random_values(elements(c.tokens, out_stride), 9);
  for (size_t p = 0; p < parts; ++p) {
    outs.emplace_back(static_cast<size_t>(row_bytes(c.out, c.tokens * out_stride)));
    if (c.epilogue == Epilogue::kAccumulate) outs.back().write(before.data(), before.size() * 4);
    LinearPart& part = call.parts[p];
    part.w = inputs.matrices[p].view;
    part.bias = c.bias ? reinterpret_cast<const float*>(inputs.biases[p].data()) : nullptr;
    if (c.epilogue != Epilogue::kGated || p == 0) {
      part.out = {c.out, c.tokens, c.n[p], out_stride, outs[p].data()};
    }
  }

  quant_linear(call, nullptr, tuning);
  SPW_CUDA_CHECK(cudaDeviceSynchronize());

  Outcome outcome;
  for (size_t p = 0; p < (c.epilogue == Epilogue::kGated ? 1 : parts); ++p) {
    EXPECT_TRUE(outs[p].guards_are_whole());
    const std::vector<std::byte> bytes = outs[p].read();
    const std::vector<float> all = values_of(c.out, bytes);
    std::vector<float> got;
    std::vector<double> want;
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t i = 0; i < out_stride; ++i) {
        const auto at = static_cast<size_t>(t * out_stride + i);
        if (i >= c.n[p]) {  // the gap must stay as it was
          if (c.epilogue == Epilogue::kAccumulate) {
            EXPECT_EQ(all[at], before[at]);
          } else {
            EXPECT_TRUE(std::isnan(all[at])) << "token " << t << " column " << i;
          }
          continue;
        }
        double value = inputs.sums[p][static_cast<size_t>(t * c.n[p] + i)];
        if (c.epilogue == Epilogue::kAccumulate) value += before[at];
        if (c.epilogue == Epilogue::kActivate) value = activation(c.kind, value);
        if (c.epilogue == Epilogue::kGated) {
          value = activation(c.kind, value) * inputs.sums[1][static_cast<size_t>(t * c.n[p] + i)];
        }
        want.push_back(value);
        got.push_back(all[at]);
      }
    }
    outcome.worst_nmse = std::max(outcome.worst_nmse, nmse(got, want));
    outcome.parts.push_back(std::move(got));
  }
  return outcome;
}

constexpr double kExact = 1e-7;    // F32 results
constexpr double kHalves = 1e-6;   // weights and their scales were rounded to halves
constexpr double kRounded = 1e-6;  // F16 results
constexpr double kBRounded = 2e-5;

double bound(int64_t tokens) { return tokens > kQuantSliceTokens ? kHalves : kExact; }

class QuantLinearTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
  Outcome run(const Case& c, const QuantLinearTuning& tuning = {}) {
    if (inputs_ == nullptr || inputs_->made_for != c) {
      inputs_.reset();
      inputs_ = std::make_unique<Inputs>(c);
    }
    return cuda::run(*inputs_, tuning);
  }
  // Returns a K of `count` whole quantization blocks.
  static int64_t blocks(int64_t count) { return count * dtype_info(GetParam()).block_elements; }

 private:
  std::unique_ptr<Inputs> inputs_;  // of the last case
};

TEST_P(QuantLinearTest, AnyNumberOfTokensGivesTheSameBits) {
  Case c{.type = GetParam()};
  c.tokens = 1;
  const Outcome alone = run(c, {.same_bits = true});
  double worst = alone.worst_nmse;
  for (const int64_t tokens : {2, 3, 7, 8, 9, 16, 33, 64, 70}) {
    c.tokens = tokens;
    const Outcome any = run(c), together = run(c, {.same_bits = true});
    worst = std::max(worst, together.worst_nmse);
    EXPECT_LE(any.worst_nmse, bound(tokens)) << tokens;
    if (tokens > kQuantFewTokens && tokens <= kQuantSliceTokens) {
      EXPECT_EQ(any.parts, together.parts);
    }
    for (size_t i = 0; i < alone.parts[0].size(); ++i) {
      ASSERT_EQ(together.parts[0][i], alone.parts[0][i]) << tokens << " tokens, row " << i;
    }
  }
  EXPECT_LE(worst, kExact);
  RecordProperty("nmse", std::to_string(worst * 1e9) + "e-9");
  std::printf("nmse %.2e\n", worst);
}

TEST_P(QuantLinearTest, AnyNumberOfBlocksInARow) {
  Case c{.type = GetParam(), .n = {35}};
  for (const int64_t count : {1, 2, 3, 5, 7, 8, 9, 17, 43}) {
    for (const int64_t tokens : {1, 2, 4, 5, 12}) {
      c.k = blocks(count);
      c.tokens = tokens;
      EXPECT_LE(run(c).worst_nmse, bound(tokens)) << "k " << c.k << ", tokens " << tokens;
    }
  }
}

TEST_P(QuantLinearTest, AnyNumberOfRows) {
  Case c{.type = GetParam(), .k = blocks(4), .tokens = 3};
  for (const int64_t n : {1, 15, 16, 17, 32, 33, 64, 9003}) {
    c.n = {n};
    EXPECT_LE(run(c).worst_nmse, kExact) << n;
    EXPECT_LE(run(c, {.cluster = 8}).worst_nmse, kExact) << n;
  }
}

TEST_P(QuantLinearTest, TuningDoesNotChangeABit) {
  Case c{.type = GetParam(), .n = {611}};
  for (const int64_t tokens : {1, 11, 20}) {
    c.tokens = tokens;
    const Outcome first = run(c, {.kernel = QuantKernel::kSlices});
    EXPECT_LE(first.worst_nmse, bound(tokens));
    for (const int cluster : {1, 2, 4, 8}) {
      for (const int stages : {1, 2, 3}) {
        for (const int blocks_per_sm : {1, 2}) {
          if (blocks_per_sm == 2 && cluster * stages != 2) continue;  // enough combinations
          // x of so many tokens does not fit into one thread block: the tokens would be split.
          if (tokens > kQuantSameBitsTokens && cluster == 1 && blocks(1) == 256) continue;
          const Outcome other = run(c, {.kernel = QuantKernel::kSlices,
                                        .cluster = cluster,
                                        .stages = stages,
                                        .blocks_per_sm = blocks_per_sm});
          ASSERT_EQ(other.parts, first.parts)
              << tokens << " tokens, cluster " << cluster << ", stages " << stages;
        }
      }
    }
    EXPECT_LE(run(c, {.generic = true}).worst_nmse, kExact);
  }
}

TEST_P(QuantLinearTest, RoundedWeightsInAnyShapeOfLaunch) {
  Case c{.type = GetParam(), .n = {3 * 16 * 8 * 17 + 5}, .k = blocks(11)};
  for (const int64_t tokens : {5, 16, 31, 64}) {
    c.tokens = tokens;
    const Outcome first = run(c, {.kernel = QuantKernel::kWgmma});
    EXPECT_LE(first.worst_nmse, kHalves) << tokens;
    for (const int stages : {1, 2, 3}) {
      for (const int blocks_per_sm : {1, 2}) {
        const Outcome other = run(
            c, {.kernel = QuantKernel::kWgmma, .stages = stages, .blocks_per_sm = blocks_per_sm});
        ASSERT_EQ(other.parts, first.parts) << tokens << " tokens, stages " << stages;
      }
    }
  }
}

// These rows fill a ring's buffers, with and without quantization blocks after the last whole
// buffer.
TEST_P(QuantLinearTest, LongRows) {
  Case c{.type = GetParam(), .n = {48}};
  const int64_t whole = 4096;
  for (const int64_t k : {whole, whole + blocks(3)}) {
    for (const int64_t tokens : {16, 32, 64}) {
      c.k = k;
      c.tokens = tokens;
      EXPECT_LE(run(c).worst_nmse, kHalves) << "k " << k << ", tokens " << tokens;
    }
  }
}

// x of so many tokens does not fit: if sums are accumulated, parts of the columns are multiplied
// one after the other; otherwise fewer tokens at a time.
TEST_P(QuantLinearTest, RowsTooLongForAllTokens) {
  Case c{.type = GetParam(), .k = 14336 + blocks(1), .tokens = 64, .bias = true};
  c.n = {40};
  c.epilogue = Epilogue::kAccumulate;
  EXPECT_LE(run(c).worst_nmse, kHalves);
  c.epilogue = Epilogue::kStore;
  EXPECT_LE(run(c).worst_nmse, kHalves);
  c.n = {40, 40};
  c.epilogue = Epilogue::kGated;
  EXPECT_LE(run(c).worst_nmse, kHalves);
}

TEST_P(QuantLinearTest, EpiloguesOverManyRows) {
  constexpr int64_t kRows = 20 * 8 * 16 + 35;  // more sets than clusters
  for (const int64_t tokens : {12, 30, 50}) {
    Case c{.type = GetParam(), .n = {kRows}, .k = blocks(9), .tokens = tokens, .bias = true};
    c.epilogue = Epilogue::kAccumulate;
    EXPECT_LE(run(c).worst_nmse, kHalves) << tokens;
    c.n = {kRows, kRows};
    c.epilogue = Epilogue::kGated;
    c.out = DType::kF16;
    EXPECT_LE(run(c).worst_nmse, kRounded) << tokens;
  }
}

TEST_P(QuantLinearTest, TuningOfFewTokensDoesNotChangeABit) {
  Case c{.type = GetParam(), .n = {3 * 16 * 132 + 16}, .k = blocks(21)};
  for (const int64_t tokens : {1, 2, 3, 4}) {
    c.tokens = tokens;
    const Outcome first = run(c);
    EXPECT_LE(first.worst_nmse, kExact);
    for (const int stages : {1, 2, 3, 4}) {
      for (const int blocks_per_sm : {1, 2, 4}) {
        const Outcome other = run(
            c, {.stages = stages, .blocks_per_sm = blocks_per_sm, .l2_sets = blocks_per_sm % 3});
        ASSERT_EQ(other.parts, first.parts)
            << tokens << " tokens, stages " << stages << ", blocks " << blocks_per_sm;
      }
    }
  }
}

TEST_P(QuantLinearTest, RowsAsInTheFile) {
  Case c{.type = GetParam(), .layout = WeightLayout::kRows, .n = {37}};
  for (const int64_t tokens : {1, 9}) {
    c.tokens = tokens;
    EXPECT_LE(run(c).worst_nmse, kExact);
  }
}

TEST_P(QuantLinearTest, PartsShareTheirInput) {
  Case c{.type = GetParam(), .n = {83, 16, 47}, .bias = true};
  for (const int64_t tokens : {1, 9}) {
    c.tokens = tokens;
    c.out = DType::kF32;
    EXPECT_LE(run(c).worst_nmse, bound(tokens));
    EXPECT_LE(run(c, {.cluster = 4}).worst_nmse, bound(tokens));
    c.out = DType::kF16;
    EXPECT_LE(run(c).worst_nmse, kRounded);
    c.out = DType::kBF16;
    EXPECT_LE(run(c).worst_nmse, kBRounded);
  }
}

TEST_P(QuantLinearTest, EpiloguesDoWhatTheySay) {
  for (const int64_t tokens : {1, 3, 9, 33}) {
    Case c{.type = GetParam(), .n = {83}, .tokens = tokens, .bias = true};
    c.epilogue = Epilogue::kAccumulate;
    EXPECT_LE(run(c).worst_nmse, bound(tokens));
    for (const auto kind : {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kGeluTanh,
                            ActivationKind::kSilu}) {
      c.kind = kind;
      c.n = {83};
      c.epilogue = Epilogue::kActivate;
      EXPECT_LE(run(c).worst_nmse, bound(tokens));
      c.n = {83, 83};
      c.epilogue = Epilogue::kGated;
      EXPECT_LE(run(c).worst_nmse, bound(tokens));
      EXPECT_LE(run(c, {.cluster = 8}).worst_nmse, bound(tokens));
      c.out = DType::kF16;
      EXPECT_LE(run(c).worst_nmse, kRounded);
      c.out = DType::kF32;
    }
  }
}

TEST_P(QuantLinearTest, AnInputThatIsNotAligned) {
  Case c{.type = GetParam(), .n = {35}, .tokens = 2, .odd_x = true};
  EXPECT_LE(run(c).worst_nmse, kExact);
  // The address is aligned to 8 bytes, which is enough for one of the kernels for more tokens.
  c.odd_x = false;
  c.x_gap = 4;
  for (const int64_t tokens : {9, 33}) {
    c.tokens = tokens;
    EXPECT_LE(run(c).worst_nmse, bound(tokens)) << tokens;
  }
}

constexpr DType kQuantized[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
                                DType::kQ5_K, DType::kQ6_K, DType::kG4};
INSTANTIATE_TEST_SUITE_P(Types, QuantLinearTest, testing::ValuesIn(kQuantized),
                         [](const auto& suite) { return std::string(dtype_name(suite.param)); });

}  // namespace
}  // namespace spillway::cuda
