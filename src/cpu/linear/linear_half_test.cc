// SPDX-License-Identifier: Apache-2.0
// Tests few tokens on F16 and BF16 rows, as the device runs them here (other processors use other
// kernels and must pass as well).
#include "cpu/linear/linear_half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "cpu/features.h"
#include "cpu/linear/linear_args.h"
#include "tensor/dequantize.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A matrix at an odd byte, right before memory that must not influence the result.
struct StoredRows {
  StoredRows(DType type_, int64_t n_, int64_t k_, uint32_t seed)
      : type(type_), n(n_), k(k_), bytes(static_cast<size_t>(2 * n * k) + 129, std::byte{0xff}) {
    fill_random(type, bytes.data() + 1, n * k, seed, 0.05F);
  }
  WeightView view() const { return {type, n, k, bytes.data() + 1}; }
  void set(int64_t row, int64_t column, uint16_t bits) {
    std::memcpy(bytes.data() + 1 + 2 * (row * k + column), &bits, 2);
  }
  std::vector<float> values() const {
    std::vector<float> decoded(static_cast<size_t>(n * k));
    dequantize_reference(type, bytes.data() + 1, decoded.data(), n * k);
    return decoded;
  }

  DType type;
  int64_t n, k;
  std::vector<std::byte> bytes;
};

std::vector<float> normal_values(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  fill_random(DType::kF32, reinterpret_cast<std::byte*>(values.data()), count, seed, 1);
  return values;
}

Activations as_matrix(std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {DType::kF32, rows, cols, cols, reinterpret_cast<std::byte*>(values.data())};
}

std::vector<float> product(const StoredRows& w, std::vector<float> x, int threads = 1) {
  CpuDevice device({.threads = threads});
  const int64_t tokens = static_cast<int64_t>(x.size()) / w.k;
  std::vector<float> out(static_cast<size_t>(tokens * w.n), kNan);
  device.ops().linear(w.view(), {}, as_matrix(x, tokens), as_matrix(out, tokens),
                      LinearMode::kStore);
  return out;
}

// Returns the squared error over the power that the sums would have if products had random signs: a
// token's NMSE without the influence of chance, which can make a few sums small.
double worst_nmse(const StoredRows& w, const std::vector<float>& x, const std::vector<float>& out) {
  const auto weights = w.values();
  const auto tokens = static_cast<int64_t>(x.size()) / w.k;
  double worst = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    double error = 0, power = 0;
    for (int64_t i = 0; i < w.n; ++i) {
      double expected = 0;
      for (int64_t k = 0; k < w.k; ++k) {
        const double one = double{weights[static_cast<size_t>(i * w.k + k)]} *
                           double{x[static_cast<size_t>(t * w.k + k)]};
        expected += one;
        power += one * one;
      }
      const double difference = double{out[static_cast<size_t>(t * w.n + i)]} - expected;
      if (!std::isfinite(difference)) return kInfinity;
      error += difference * difference;
    }
    if (error > 0) worst = std::max(worst, error / power);
  }
  return worst;
}

// Up to four tokens are hardly rounded; more may be rounded to bfloat16, weights as well.
double bar(int64_t tokens) { return tokens <= 4 ? 1e-6 : 1e-5; }

class LinearHalfTest : public testing::TestWithParam<DType> {};

TEST_P(LinearHalfTest, MatchesDoublePrecisionForEveryNumberOfTokens) {
  const StoredRows w(GetParam(), 101, 416, 1);
  for (int64_t tokens = 1; tokens <= 37; ++tokens) {
    const auto x = normal_values(tokens * w.k, 2);
    EXPECT_LE(worst_nmse(w, x, product(w, x)), bar(tokens)) << tokens << " tokens";
  }
}

TEST_P(LinearHalfTest, MatchesDoublePrecisionForEveryNumberOfRows) {
  for (int64_t rows = 1; rows <= 100; ++rows) {
    const StoredRows w(GetParam(), rows, 67, 3);
    for (const int64_t tokens : {1, 3, 8}) {
      const auto x = normal_values(tokens * w.k, 4);
      ASSERT_LE(worst_nmse(w, x, product(w, x)), 3 * bar(tokens)) << rows << " rows";
    }
  }
}

TEST_P(LinearHalfTest, MatchesDoublePrecisionForEveryDepth) {
  for (int64_t depth = 1; depth <= 140; ++depth) {
    const StoredRows w(GetParam(), 45, depth, 5);
    for (const int64_t tokens : {1, 2, 4, 5, 16}) {
      const auto x = normal_values(tokens * depth, 6);
      ASSERT_LE(worst_nmse(w, x, product(w, x)), 3 * bar(tokens)) << depth << " columns";
    }
  }
}

TEST_P(LinearHalfTest, AnOutlierDoesNotCostTheOthersTheirPrecision) {
  const StoredRows w(GetParam(), 64, 1024, 7);
  for (const int64_t tokens : {1, 4, 9}) {
    for (const float outlier : {1e4F, 3e6F}) {
      auto x = normal_values(tokens * w.k, 8);
      auto rest = x;
      for (int64_t t = 0; t < tokens; ++t) {
        const auto at = static_cast<size_t>(t * w.k + 17 + t);
        // A power of two is exact in every type, so that only the others' share differs.
        x[at] = std::exp2(std::round(std::log2(outlier)));
        rest[at] = 0;
      }
      auto out = product(w, x);
      EXPECT_LE(worst_nmse(w, x, out), bar(tokens));
      if (tokens > 4) continue;
      const auto weights = w.values();
      std::vector<float> without(out.size());
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < w.n; ++i) {
          const auto at = static_cast<size_t>(t * w.n + i);
          without[at] = static_cast<float>(
              double{out[at]} - double{x[static_cast<size_t>(t * w.k + 17 + t)]} *
                                    double{weights[static_cast<size_t>(i * w.k + 17 + t)]});
        }
      }
      // Sums keep 24 bits of the outlier's product; some instructions do not round to the nearest.
      EXPECT_LE(worst_nmse(w, rest, without), outlier < 1e5F ? 1e-5 : 5e-2);
    }
  }
}

TEST_P(LinearHalfTest, AnyMagnitudeOfActivationsWorks) {
  const StoredRows w(GetParam(), 33, 96, 9);
  for (const int64_t tokens : {1, 3}) {
    for (const float magnitude : {1e-30F, 1e-12F, 1e-5F, 1e5F, 1e12F, 1e30F}) {
      auto x = normal_values(tokens * w.k, 10);
      for (float& value : x) value *= magnitude;
      EXPECT_LE(worst_nmse(w, x, product(w, x)), bar(tokens)) << magnitude;
    }
  }
}

TEST_P(LinearHalfTest, ExtremeWeightsKeepTheirValue) {
  const bool half = GetParam() == DType::kF16;
  StoredRows w(GetParam(), 8, 64, 11);
  // These are the largest, the smallest normal and a subnormal of F16, and 1 and 2^-100 of BF16.
  // The others are zero.
  const std::vector<uint16_t> bits = half ? std::vector<uint16_t>{0x7bff, 0x0400, 0x0001, 0x8203}
                                          : std::vector<uint16_t>{0x7f00, 0x3f80, 0x0d80, 0x8d81};
  for (int64_t i = 0; i < w.n; ++i) {
    for (int64_t k = 0; k < w.k; ++k) w.set(i, k, 0);
    w.set(i, 5 * i, bits[static_cast<size_t>(i) % bits.size()]);
  }
  const auto weights = w.values();
  for (const int64_t tokens : {1, 2, 4}) {
    const std::vector<float> x(static_cast<size_t>(tokens * w.k), 0.75F);
    const auto out = product(w, x);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < w.n; ++i) {
        EXPECT_EQ(out[static_cast<size_t>(t * w.n + i)],
                  0.75F * weights[static_cast<size_t>(i * w.k + 5 * i)]);
      }
    }
  }
}

TEST_P(LinearHalfTest, ZerosGiveZero) {
  const StoredRows w(GetParam(), 21, 75, 12);
  for (const int64_t tokens : {1, 4, 6}) {
    for (const float value : product(w, std::vector<float>(static_cast<size_t>(tokens * w.k)))) {
      EXPECT_EQ(value, 0);
    }
  }
}

TEST_P(LinearHalfTest, WhatIsNoNumberShowsInItsTokenOnly) {
  const StoredRows w(GetParam(), 21, 75, 13);
  for (const int64_t tokens : {1, 2, 4, 7, 16}) {
    const auto clean = normal_values(tokens * w.k, 14);
    const auto expected = product(w, clean);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      auto x = clean;
      const int64_t token = tokens / 2;
      x[static_cast<size_t>(token * w.k + 74)] = bad;
      const auto out = product(w, x);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < w.n; ++i) {
          const auto at = static_cast<size_t>(t * w.n + i);
          if (t == token) {
            EXPECT_FALSE(std::isfinite(out[at]));
          } else {
            EXPECT_EQ(out[at], expected[at]);
          }
        }
      }
    }
  }
}

TEST_P(LinearHalfTest, WeightsThatAreNoNumbersShowInTheirRowOnly) {
  const bool half = GetParam() == DType::kF16;
  for (const uint16_t bits : half ? std::vector<uint16_t>{0x7c00, 0xfc00, 0x7e00, 0x7fff}
                                  : std::vector<uint16_t>{0x7f80, 0xff80, 0x7fc0, 0x7fff}) {
    StoredRows w(GetParam(), 21, 75, 15);
    w.set(11, 74, bits);
    for (const int64_t tokens : {1, 2, 4, 7, 16}) {
      const auto out = product(w, normal_values(tokens * w.k, 16));
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isfinite(out[i]), i % 21 != 11);
    }
  }
}

TEST_P(LinearHalfTest, SlicesAndThreadsDoNotChangeABit) {
  const StoredRows w(GetParam(), 333, 1111, 17);
  for (const int64_t tokens : {1, 2, 3, 4, 8, 20}) {
    auto x = normal_values(tokens * w.k, 18);
    const auto expected = product(w, x, 1);
    for (const int threads : {2, 3, 5}) ASSERT_EQ(product(w, x, threads), expected);
    CpuDevice device({.threads = 2});
    std::vector<float> part(static_cast<size_t>(tokens * 50));
    device.ops().linear(w.view().slice(77, 50), {}, as_matrix(x, tokens), as_matrix(part, tokens),
                        LinearMode::kStore);
    for (size_t i = 0; i < part.size(); ++i)
      ASSERT_EQ(part[i], expected[i / 50 * 333 + 77 + i % 50]);
  }
}

// Multiplies a row and a token in the order that linear.h promises, with sixteen lanes.
float in_order(const float* w, const float* x, int64_t size) {
  float total = 0;
  for (int64_t k = 0, next; k < size; k = next) {
    next = next_cut(k, size);
    float lanes[16] = {};
    for (int64_t i = k; i < next; ++i) {
      float& lane = lanes[(i - k) % 16];
      lane = std::fma(w[i], x[i], lane);
    }
    float quads[4];
    for (int i = 0; i < 4; ++i) {
      const float* lane = lanes + 4 * i;
      quads[i] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
    }
    total += (quads[0] + quads[2]) + (quads[1] + quads[3]);
  }
  return total;
}

TEST_P(LinearHalfTest, WithAvx512UpToEightTokensAreInTheOrderOfF32) {
  if (!cpu_features().avx512_vnni) GTEST_SKIP() << "this processor has no AVX-512";
  for (const int64_t depth : {5, 33, 512, 700, 1100, 2048}) {
    const StoredRows w(GetParam(), 39, depth, 19);
    const auto weights = w.values();
    for (int64_t tokens = 1; tokens <= 8; ++tokens) {
      // Several tokens on BF16 may be computed with other instructions.
      if (GetParam() == DType::kBF16 && cpu_features().amx_bf16 && tokens > 1) break;
      const auto x = normal_values(tokens * depth, 20);
      const auto out = product(w, x);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < w.n; ++i) {
          ASSERT_EQ(out[static_cast<size_t>(t * w.n + i)],
                    in_order(weights.data() + i * depth, x.data() + t * depth, depth))
              << depth << " columns, " << tokens << " tokens, row " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearHalfTest, testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& suite) { return std::string(dtype_name(suite.param)); });

}  // namespace
}  // namespace spillway
