// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear_int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/quantize_activations.h"
#include "tensor/dequantize.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

std::vector<Int8Set> available_sets() {
  std::vector<Int8Set> sets;
  for (const Int8Set set : {Int8Set::kDotprod, Int8Set::kI8mm}) {
    if (set <= best_int8_set()) sets.push_back(set);
  }
  return sets;
}

Activations view_of(std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {DType::kF32, rows, cols, cols, reinterpret_cast<std::byte*>(values.data())};
}

struct Quantized {
  Quantized(std::vector<float>& x, int64_t tokens, DType type)
      : q(static_cast<size_t>((tokens + 1) / 2) * 2 * (x.size() / static_cast<size_t>(tokens))),
        d(q.size() / 16),
        m(q.size() / 16) {
    quantize_pairs(view_of(x, tokens), int8_lift(type), 0, (tokens + 1) / 2, q.data(), d.data(),
                   m.data());
  }
  // What token `t` of `cols` columns has become.
  double at(int64_t t, int64_t col, int64_t cols, float lift) const {
    const int64_t block = t / 2 * (cols / 32) + col / 32, i = col % 32;
    const int8_t code = q[static_cast<size_t>(block * 64 + i / 8 * 16 + t % 2 * 8 + i % 8)];
    return double{d[static_cast<size_t>(block * 4 + t % 2)]} * lift * code;
  }
  std::vector<int8_t> q;
  std::vector<float> d, m;
};

class LinearInt8Test : public testing::TestWithParam<DType> {};

// Against double precision over the rounded activations: only F32 sums may differ.
TEST_P(LinearInt8Test, EverySetComputesTheProductAndTheSameBits) {
  const DType type = GetParam();
  if (!can_pack(type)) GTEST_SKIP() << "has no packed layout";
  constexpr int64_t kRows = 48, kCols = 1536;  // more than one panel deep
  std::vector<std::byte> stored(static_cast<size_t>(row_bytes(type, kRows * kCols)));
  fill_random(type, stored.data(), kRows * kCols, 3, 0.5F);
  std::vector<float> weights(kRows * kCols);
  dequantize_reference(type, stored.data(), weights.data(), kRows * kCols);
  pack_groups(type, stored.data(), stored.data(), kRows / kGroupRows, kCols);
  std::vector<uint8_t> panel(kInt8PanelBytes);
  for (const int64_t tokens : {1, 2, 3, 4, 5, 7, 8, 9, 17, 30}) {
    std::vector<float> x(static_cast<size_t>(tokens * kCols)), bias(kRows);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i % 1013));
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i);
    const Quantized quantized(x, tokens, type);
    std::vector<float> first;
    for (const Int8Set set : available_sets()) {
      std::vector<float> out(static_cast<size_t>(tokens * kRows), NAN);
      const Int8Args args{.w = reinterpret_cast<const uint8_t*>(stored.data()),
                          .group_bytes = kGroupRows * row_bytes(type, kCols),
                          .k = kCols,
                          .q = quantized.q.data(),
                          .d = quantized.d.data(),
                          .m = quantized.m.data(),
                          .tokens = tokens,
                          .out = out.data(),
                          .out_stride = kRows,
                          .bias = bias.data(),
                          .accumulate = false};
      try_int8_kernel(set, type)(args, 0, kRows / kGroupRows, panel.data());
      double error = 0, power = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t row = 0; row < kRows; ++row) {
          double sum = bias[static_cast<size_t>(row)];
          for (int64_t k = 0; k < kCols; ++k) {
            sum += double{weights[static_cast<size_t>(row * kCols + k)]} *
                   quantized.at(t, k, kCols, int8_lift(type));
          }
          const double difference = sum - out[static_cast<size_t>(t * kRows + row)];
          error += difference * difference;
          power += sum * sum;
        }
      }
      EXPECT_LE(error / power, 1e-11) << tokens << " tokens, set " << static_cast<int>(set);
      if (first.empty()) first = out;
      EXPECT_EQ(std::memcmp(out.data(), first.data(), out.size() * 4), 0) << tokens << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearInt8Test, testing::ValuesIn(kAllDTypes),
                         [](const auto& suite) { return std::string(dtype_name(suite.param)); });

TEST(QuantizeActivationsTest, RoundsToTheNearestOf255StepsPerBlock) {
  std::vector<float> x(3 * 64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i * 7)) * 5;
  const Quantized quantized(x, 3, DType::kQ8_0);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t col = 0; col < 64; ++col) {
      EXPECT_NEAR(quantized.at(t, col, 64, 1), x[static_cast<size_t>(t * 64 + col)], 5.0 / 253);
    }
  }
}

TEST(QuantizeActivationsTest, StandsZeroTinyAndHugeValues) {
  for (const float size : {0.0F, 1e-45F, 1e-38F, 1e-20F, 1e20F, 3e38F}) {
    std::vector<float> x(32);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (i % 2 == 0 ? size : -size) / 2;
    const Quantized quantized(x, 1, DType::kQ4_1);
    for (int64_t i = 0; i < 32; ++i) {
      const double value = quantized.at(0, i, 32, 1), wanted = x[static_cast<size_t>(i)];
      ASSERT_TRUE(std::isfinite(value));
      // Far below anything that matters, zero is as good.
      EXPECT_NEAR(value, wanted, std::fabs(wanted) / 127 + 1e-30) << size;
    }
    EXPECT_TRUE(std::isfinite(quantized.m[0]));
  }
  std::vector<float> bad(32, 1.0F);
  bad[5] = NAN;
  EXPECT_TRUE(std::isnan(Quantized(bad, 1, DType::kQ8_0).d[0]));  // never hidden
}

}  // namespace
}  // namespace spillway
