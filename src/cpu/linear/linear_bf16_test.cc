// SPDX-License-Identifier: Apache-2.0
// Tests how linear_bf16 uses the bfloat16 kernels of this processor: depths, sweeps, chunks of
// tokens, rows read as they are stored, and the share of each worker.
#include "cpu/linear/linear_bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "device/tuning.h"
#include "tensor/dequantize.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

std::vector<float> normal_values(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  fill_random(DType::kF32, reinterpret_cast<std::byte*>(values.data()), count, seed, 1);
  return values;
}

Activations as_matrix(std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {DType::kF32, rows, cols, cols, reinterpret_cast<std::byte*>(values.data())};
}

// A matrix at an odd byte, a batch, a bias and the old contents of out.
struct Problem {
  Problem(DType type, int64_t n_, int64_t k_, int64_t tokens_)
      : n(n_),
        k(k_),
        tokens(tokens_),
        stored(static_cast<size_t>(row_bytes(type, n * k)) + 1),
        x(normal_values(tokens * k, 2)),
        bias(normal_values(n, 3)),
        old(normal_values(tokens * n, 4)) {
    fill_random(type, stored.data() + 1, n * k, 1, 0.05F);
    w = {type, n, k, stored.data() + 1};
  }

  std::vector<float> product(int threads, int64_t first = 0, int64_t rows = 0) {
    if (rows == 0) rows = n;
    std::vector<float> out(static_cast<size_t>(tokens * rows));
    for (size_t i = 0; i < out.size(); ++i) {
      const auto token = static_cast<int64_t>(i) / rows, row = static_cast<int64_t>(i) % rows;
      out[i] = old[static_cast<size_t>(token * n + first + row)];
    }
    CpuDevice device({.threads = threads});
    const TuningTable always_gemm(InflectionPoints{.m1 = 2, .m2 = 2});
    device.ops().set_tuning(&always_gemm);
    const WeightView bias_view{DType::kF32, 1, rows,
                               reinterpret_cast<std::byte*>(bias.data() + first)};
    device.ops().linear(w.slice(first, rows), bias_view, as_matrix(x, tokens),
                        as_matrix(out, tokens), LinearMode::kAccumulate);
    return out;
  }

  double nmse(const std::vector<float>& out) const {
    std::vector<float> weights(static_cast<size_t>(n * k));
    dequantize_reference(w.dtype, w.data, weights.data(), n * k);
    double error = 0, power = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t c = 0; c < k; ++c) {
          const double one = double{weights[static_cast<size_t>(i * k + c)]} *
                             double{x[static_cast<size_t>(t * k + c)]};
          sum += one;
          power += one * one;  // of sums whose products have random signs: leaves out chance
        }
        const double there =
            double{bias[static_cast<size_t>(i)]} + double{old[static_cast<size_t>(t * n + i)]};
        const double difference = double{out[static_cast<size_t>(t * n + i)]} - there - sum;
        if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
        error += difference * difference;
      }
    }
    return error / power;
  }

  int64_t n, k, tokens;
  std::vector<std::byte> stored;
  std::vector<float> x, bias, old;
  WeightView w;
};

class LinearBf16Test : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (try_bf16_kernels() == nullptr) GTEST_SKIP() << "no bfloat16 products here";
  }
  void TearDown() override { use_bf16_kernels(nullptr); }
};

TEST_P(LinearBf16Test, MatchesDoublePrecisionAtEveryEdge) {
  for (const int64_t tokens : {2, 33, 129, 530}) {
    for (const int64_t rows : {5, 50, 161}) {
      Problem problem(GetParam(), rows, tokens % 2 == 0 ? 1056 : 288, tokens);
      EXPECT_LE(problem.nmse(problem.product(2)), 1e-5) << rows << " rows, " << tokens << " tokens";
    }
  }
  for (const int64_t depth : {32, 2080, 4128}) {
    for (const int64_t tokens : {40, 140}) {
      Problem problem(GetParam(), 35, depth, tokens);
      EXPECT_LE(problem.nmse(problem.product(3)), 1e-5) << depth << " deep, " << tokens;
    }
  }
}

TEST_P(LinearBf16Test, SlicesAndThreadsDoNotChangeABit) {
  for (const int64_t tokens : {3, 70, 300}) {
    Problem problem(GetParam(), 150, 2112, tokens);
    const auto expected = problem.product(1);
    for (const int threads : {2, 5, 16}) ASSERT_EQ(problem.product(threads), expected) << threads;
    const auto part = problem.product(2, 37, 75);
    for (size_t i = 0; i < part.size(); ++i) {
      ASSERT_EQ(part[i], expected[i / 75 * 150 + 37 + i % 75]) << tokens << " tokens, " << i;
    }
  }
}

// If sums are kept in the kernels' own order, blocking does not change the result.
TEST_P(LinearBf16Test, BlockingDoesNotChangeABitOfKernelsThatKeepSums) {
  const Bf16Kernels best = *try_bf16_kernels();
  if (best.sweep_tokens == 0) GTEST_SKIP() << "sums of these kernels are added to the output";
  for (const int64_t tokens : {33, 100, 300}) {
    Problem problem(GetParam(), 150, 2112, tokens);
    const auto expected = problem.product(1);
    for (const int64_t depth : {256, 512, 4096}) {
      for (const int64_t cut_steps : {0, 3, 8}) {
        Bf16Kernels other = best;
        other.max_depth = other.direct_depth = depth;
        other.cut_steps = cut_steps;
        other.panels = 1 + depth / 512;
        other.chunk_tokens = (1 + cut_steps / 3) * best.token_tile;
        other.direct_tokens = cut_steps == 3 ? 0 : 300;
        other.asks_ahead = depth != 512;
        other.x_ahead_steps = cut_steps / 4;
        use_bf16_kernels(&other);
        ASSERT_EQ(problem.product(2), expected) << depth << " deep, cut " << cut_steps;
      }
    }
    use_bf16_kernels(nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearBf16Test,
                         testing::Values(DType::kF16, DType::kBF16, DType::kQ8_0),
                         [](const auto& suite) { return std::string(dtype_name(suite.param)); });

}  // namespace
}  // namespace spillway
