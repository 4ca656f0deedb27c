// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/linear_int8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cpu/linear/quantize_activations.h"
#include "tensor/dequantize.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

// Returns the sets that this processor has and that have a kernel for the type.
std::vector<Int8Set> available_sets(DType type) {
  std::vector<Int8Set> sets;
  for (const Int8Set set : kAllInt8Sets) {
    if (has_int8_set(set) && try_int8_kernel(set, type) != nullptr) sets.push_back(set);
  }
  return sets;
}

Activations view_of(std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {DType::kF32, rows, cols, cols, reinterpret_cast<std::byte*>(values.data())};
}

struct Quantized {
  Quantized(std::vector<float>& x, int64_t tokens, const Int8Form& form)
      : q(static_cast<size_t>((tokens + 1) / 2) * 2 * (x.size() / static_cast<size_t>(tokens))),
        d(q.size() / 16),
        m(q.size() / 16),
        super(q.size() / 512) {
    quantize_pairs(view_of(x, tokens), form, 0, (tokens + 1) / 2,
                   {q.data(), d.data(), m.data(), super.data()});
  }
  // Returns the value that a column of token `t`, of `cols` columns, has become.
  double at(int64_t t, int64_t col, int64_t cols, const Int8Form& form) const {
    const int64_t block = t / 2 * (cols / 32) + col / 32;
    const auto code_at = [&](int64_t i) {
      return static_cast<double>(
          q[static_cast<size_t>(block * 64 + i / 8 * 16 + t % 2 * 8 + i % 8)]);
    };
    double code = code_at(col % 32);
    if (form.skew && col % 32 < 16) code += code_at(col % 32 + 16) / 16;
    const float block_d = d[static_cast<size_t>(block * 4 + t % 2)];
    if (form.multipliers == 0) return double{block_d} * form.lift * code;
    return double{super[static_cast<size_t>(block / 8)].d[t % 2]} * form.lift * code *
           std::bit_cast<int32_t>(block_d) / form.multiplier_unit / form.integer_unit;
  }
  std::vector<int8_t> q;
  std::vector<float> d, m;
  std::vector<Int8Super> super;
};

// A packed matrix, and its values.
struct Packed {
  Packed(DType dtype, int64_t n, int64_t k, std::vector<std::byte> stored)
      : type(dtype),
        rows(n),
        cols(k),
        weights(static_cast<size_t>(n * k)),
        data(std::move(stored)) {
    dequantize_reference(type, data.data(), weights.data(), rows * cols);
    pack_groups(type, data.data(), data.data(), rows / kGroupRows, cols);
  }
  DType type;
  int64_t rows, cols;
  std::vector<float> weights;
  std::vector<std::byte> data;
};

std::vector<std::byte> random_bytes(DType type, int64_t count) {
  std::vector<std::byte> stored(static_cast<size_t>(row_bytes(type, count)));
  fill_random(type, stored.data(), count, 3, 0.5F);
  return stored;
}

struct Result {
  std::vector<float> out;  // [tokens, rows]
  double nmse;             // against double precision over the rounded activations
};

// Multiplies groups [1, all) in one call and group 0 in another; out has a border that must stay
// unchanged.
Result multiply(Int8Set set, const Packed& w, std::vector<float>& x, int64_t tokens,
                bool accumulate) {
  constexpr float kBorder = 1234.5F, kOld = 0.25F;
  const Int8Form form = int8_form(set, w.type);
  const Quantized quantized(x, tokens, form);
  const int64_t stride = w.rows + 3;
  std::vector<float> bias(static_cast<size_t>(w.rows));
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i);
  std::vector<float> out(static_cast<size_t>((tokens + 1) * stride), accumulate ? kOld : NAN);
  for (int64_t t = 0; t <= tokens; ++t) {
    for (int64_t i = t < tokens ? w.rows : 0; i < stride; ++i) {
      out[static_cast<size_t>(t * stride + i)] = kBorder;
    }
  }
  const Int8Args args{.w = reinterpret_cast<const uint8_t*>(w.data.data()),
                      .group_bytes = kGroupRows * row_bytes(w.type, w.cols),
                      .k = w.cols,
                      .q = quantized.q.data(),
                      .d = quantized.d.data(),
                      .m = quantized.m.data(),
                      .super = quantized.super.data(),
                      .tokens = tokens,
                      .out = out.data(),
                      .out_stride = stride,
                      .bias = bias.data(),
                      .accumulate = accumulate};
  std::vector<uint8_t> panel(kInt8PanelBytes);
  try_int8_kernel(set, w.type)(args, 1, w.rows / kGroupRows, panel.data());
  try_int8_kernel(set, w.type)(args, 0, 1, panel.data());
  Result result{{}, 0};
  double error = 0, power = 0;
  for (int64_t t = 0; t <= tokens; ++t) {
    for (int64_t row = 0; row < stride; ++row) {
      const float got = out[static_cast<size_t>(t * stride + row)];
      if (t == tokens || row >= w.rows) {
        EXPECT_EQ(got, kBorder) << "written outside: token " << t << ", row " << row;
        continue;
      }
      double sum = bias[static_cast<size_t>(row)] + (accumulate ? kOld : 0);
      for (int64_t k = 0; k < w.cols; ++k) {
        sum += double{w.weights[static_cast<size_t>(row * w.cols + k)]} *
               quantized.at(t, k, w.cols, form);
      }
      error += (sum - got) * (sum - got);
      power += sum * sum;
      result.out.push_back(got);
    }
  }
  result.nmse = error / power;
  return result;
}

// Integer sums are exact. Forms with multipliers round them, or the sums that minima multiply, by
// less than a tenth of what rounding the activations costs.
double nmse_bar(Int8Set set, DType type) {
  const Int8Form form = int8_form(set, type);
  if (form.multipliers == 0) return 1e-11;
  return form.integer_unit > 1 ? 1e-6 : 1e-8;
}

class LinearInt8Test : public testing::TestWithParam<DType> {};

TEST_P(LinearInt8Test, EverySetComputesTheProductAndTheSameBitsForAnyTokens) {
  if (!can_pack(GetParam())) GTEST_SKIP() << "has no packed layout";
  if (available_sets(GetParam()).empty()) GTEST_SKIP() << "no integer kernels for this processor";
  // The shapes have several streams of groups and some left over, and are more than one panel deep.
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{160, 256}, {48, 1536}}) {
    const Packed w(GetParam(), rows, cols, random_bytes(GetParam(), rows * cols));
    std::map<Int8Set, std::vector<float>> of_fewer_tokens;
    for (const int64_t tokens : {1, 2, 3, 4, 5, 7, 8, 9, 17, 31}) {
      std::vector<float> x(static_cast<size_t>(tokens * cols));
      for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i % 1013));
      for (const Int8Set set : available_sets(GetParam())) {
        const Result result = multiply(set, w, x, tokens, tokens % 2 == 0);
        EXPECT_LE(result.nmse, nmse_bar(set, GetParam()))
            << tokens << " tokens, set " << static_cast<int>(set);
        const std::vector<float> out = multiply(set, w, x, tokens, false).out;
        std::vector<float>& wanted = of_fewer_tokens[set];
        const size_t shared = std::min(out.size(), wanted.size());
        const bool same =
            shared == 0 || std::memcmp(out.data(), wanted.data(), shared * sizeof(float)) == 0;
        EXPECT_TRUE(same) << tokens << " tokens, set " << static_cast<int>(set);
        if (out.size() > wanted.size()) wanted = out;
      }
    }
  }
}

// These codes and activations have the largest possible sums: nothing may saturate.
TEST_P(LinearInt8Test, StandsTheLargestSums) {
  if (!can_pack(GetParam())) GTEST_SKIP() << "has no packed layout";
  constexpr int64_t kRows = 16, kCols = 256;
  for (const int byte : {0x80, 0x7b, 0xf7, 0x88, 0x77, 0x78, 0x07, 0x08}) {  // halves are finite
    std::vector<std::byte> stored(static_cast<size_t>(row_bytes(GetParam(), kRows * kCols)),
                                  static_cast<std::byte>(byte));
    const Packed w(GetParam(), kRows, kCols, std::move(stored));
    for (const int64_t tokens : {1, 2, 8, 9}) {
      for (const float sign : {1.0F, -1.0F}) {
        std::vector<float> x(static_cast<size_t>(tokens * kCols), sign * 100);
        for (const Int8Set set : available_sets(GetParam())) {
          EXPECT_LE(multiply(set, w, x, tokens, false).nmse, nmse_bar(set, GetParam()))
              << "byte " << byte << ", " << tokens << " tokens, set " << static_cast<int>(set);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearInt8Test, testing::ValuesIn(kAllDTypes),
                         [](const auto& suite) { return std::string(dtype_name(suite.param)); });

TEST(Int8KernelsTest, EverySetReadsEveryPackedType) {
  for (const Int8Set set : kAllInt8Sets) {
    if (!has_int8_set(set)) continue;
    for (const DType type : kAllDTypes) {
      EXPECT_EQ(try_int8_kernel(set, type) != nullptr, can_pack(type))
          << dtype_name(type) << ", set " << static_cast<int>(set);
    }
  }
}

TEST(QuantizeActivationsTest, RoundsToTheNearestOf255StepsPerBlock) {
  std::vector<float> x(3 * 64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i * 7)) * 5;
  const Quantized quantized(x, 3, Int8Form());
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t col = 0; col < 64; ++col) {
      EXPECT_NEAR(quantized.at(t, col, 64, Int8Form()), x[static_cast<size_t>(t * 64 + col)],
                  5.0 / 253);
    }
  }
}

TEST(QuantizeActivationsTest, StandsZeroTinyAndHugeValues) {
  for (const float size : {0.0F, 1e-45F, 1e-38F, 1e-20F, 1e20F, 3e38F}) {
    std::vector<float> x(32);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (i % 2 == 0 ? size : -size) / 2;
    const Quantized quantized(x, 1, Int8Form());
    for (int64_t i = 0; i < 32; ++i) {
      const double value = quantized.at(0, i, 32, Int8Form()), wanted = x[static_cast<size_t>(i)];
      ASSERT_TRUE(std::isfinite(value));
      // For values far below any that matters, zero is as good.
      EXPECT_NEAR(value, wanted, std::fabs(wanted) / 127 + 1e-30) << size;
    }
    EXPECT_TRUE(std::isfinite(quantized.m[0]));
  }
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {  // NaN and infinity are never hidden
    for (const size_t at : {0, 5, 31}) {
      std::vector<float> x(32, 1.0F);
      x[at] = bad;
      const Quantized quantized(x, 1, Int8Form());
      EXPECT_FALSE(std::isfinite(quantized.d[0]));
      EXPECT_TRUE(std::isnan(quantized.at(0, static_cast<int64_t>(at), 32, Int8Form())));
    }
  }
}

// In forms with multipliers an outlier costs its own 32 columns precision, and the other 224 hardly
// any.
TEST(QuantizeActivationsTest, MultipliersKeepSmallValuesBesideLargeOnes) {
  for (const Int8Set set : available_sets(DType::kQ4_K)) {
    for (const DType type : {DType::kQ2_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
      const Int8Form form = int8_form(set, type);
      if (form.multipliers == 0) continue;
      std::vector<float> x(3 * 512);
      for (size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i * 7));
      x[40] = -20;
      const Quantized quantized(x, 3, form);
      for (int64_t t = 0; t < 3; ++t) {
        for (int64_t col = 0; col < 512; ++col) {
          const bool beside = t == 0 && col < 256, same = beside && col / 32 == 1;
          // The bound is half a step of 1 / 119, of its own step or of the outlier's.
          const double most = same ? 20.0 / 237 : 1.0 / 237 + 20.0 / 237 / form.multipliers;
          EXPECT_NEAR(quantized.at(t, col, 512, form), x[static_cast<size_t>(t * 512 + col)], most);
        }
      }
    }
  }
}

TEST(QuantizeActivationsTest, MultipliersStandZeroTinyHugeAndNoNumbers) {
  for (const Int8Set set : available_sets(DType::kQ4_K)) {
    const Int8Form form = int8_form(set, DType::kQ4_K);
    if (form.multipliers == 0) continue;
    for (const float size : {0.0F, 1e-45F, 1e-38F, 1e-20F, 1e20F, 3e38F}) {
      std::vector<float> x(256);
      for (size_t i = 0; i < x.size(); ++i) x[i] = (i % 2 == 0 ? size : -size) / 2;
      const Quantized quantized(x, 1, form);
      for (int64_t i = 0; i < 256; ++i) {
        EXPECT_NEAR(quantized.at(0, i, 256, form), x[static_cast<size_t>(i)], size / 119 + 1e-30);
      }
    }
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      std::vector<float> x(256, 1.0F);
      x[77] = bad;
      const Quantized quantized(x, 1, form);
      EXPECT_FALSE(std::isfinite(quantized.super[0].d[0]));
      EXPECT_FALSE(std::isfinite(quantized.super[0].t[0]));
      EXPECT_TRUE(std::isnan(quantized.at(0, 77, 256, form)));
    }
  }
}

// The start values of the kernels' integer sums are exactly what an offset of the weights adds.
TEST(QuantizeActivationsTest, GivesTheSumsThatTakeBackAnOffset) {
  std::vector<float> x(3 * 64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i * 7)) + 0.5F;
  for (const bool halves : {false, true}) {
    const Quantized quantized(x, 3, {.offset = 8, .halves = halves});
    for (int64_t pair = 0; pair < 2; ++pair) {
      for (int64_t block = pair * 2; block < pair * 2 + 2; ++block) {
        for (int64_t token = 0; token < 2; ++token) {
          int sum[2] = {0, 0};
          for (int64_t i = 0; i < 32; ++i) {
            sum[i / 16] +=
                quantized.q[static_cast<size_t>(block * 64 + i / 8 * 16 + token * 8 + i % 8)];
          }
          for (int half = 0; half < 2; ++half) {
            const float stored = quantized.m[static_cast<size_t>(block * 4 + half * 2 + token)];
            EXPECT_EQ(std::bit_cast<int32_t>(stored), -8 * (halves ? sum[half] : sum[0] + sum[1]));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway
