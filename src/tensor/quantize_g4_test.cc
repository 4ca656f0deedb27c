// SPDX-License-Identifier: Apache-2.0
#include "tensor/quantize_g4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/dequantize.h"
#include "tensor/quant_blocks.h"

namespace spillway {
namespace {

using Values = std::vector<float>;

struct Decoded {
  bool good;
  Values values;
  std::vector<BlockG4> blocks;
};

Decoded through_g4(const Values& values) {
  Decoded out{false, Values(values.size(), NAN), std::vector<BlockG4>(values.size() / 64)};
  auto* stored = reinterpret_cast<std::byte*>(out.blocks.data());
  const auto count = static_cast<int64_t>(values.size());
  out.good = quantize_g4(values.data(), stored, count);
  dequantize_reference(DType::kG4, stored, out.values.data(), count);
  return out;
}

Values normal_values(size_t count, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  Values values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Every element must get the nearest of the sixteen values that the group's rounded scale and
// minimum allow, and the group's ends must be kept except for the rounding to F16.
TEST(QuantizeG4Test, TakesTheNearestOfTheSixteenValues) {
  for (const float deviation : {1e-6F, 1e-4F, 0.02F, 1.0F, 500.0F}) {
    const Values values = normal_values(64 * 200, deviation, 3);
    const Decoded out = through_g4(values);
    ASSERT_TRUE(out.good);
    for (size_t i = 0; i < values.size(); ++i) {
      const BlockG4& block = out.blocks[i / 64];
      const double d = to_float(block.d), m = to_float(block.m);
      double nearest = std::numeric_limits<double>::infinity();
      for (int code = 0; code < 16; ++code)
        nearest = std::min(nearest, std::fabs(m + d * code - values[i]));
      // Ties and the rounding of (v - m) / d may go either way.
      ASSERT_LE(std::fabs(double{out.values[i]} - values[i]), nearest * 1.0001 + d * 1e-4) << i;
      // The bound is half a step plus the rounding of the ends: 15 half-ulps of d and one of m.
      const double ends =
          15 * std::max(d * 0x1p-11, 0x1p-25) + std::max(std::fabs(m) * 0x1p-11, 0x1p-25);
      ASSERT_LE(nearest, d / 2 + ends) << i;
    }
  }
}

TEST(QuantizeG4Test, KeepsWhatItCanExpressExactly) {
  Values values(64);
  for (size_t i = 0; i < 64; ++i) values[i] = -3.5F + 0.25F * static_cast<float>(i * 7 % 16);
  EXPECT_EQ(through_g4(values).values, values);
  EXPECT_EQ(through_g4(Values(64, 0.0F)).values, Values(64, 0.0F));
  EXPECT_EQ(through_g4(Values(64, -0.125F)).values, Values(64, -0.125F));  // an empty range
}

TEST(QuantizeG4Test, StandsConstantsThatF16Rounds) {
  for (const float constant : {0.1F, -0.1F, 1e-7F, 65519.0F, -65519.0F, 3.14159e-5F}) {
    const Decoded out = through_g4(Values(64, constant));
    EXPECT_TRUE(out.good);
    for (const float value : out.values)
      EXPECT_NEAR(value, constant, std::fabs(constant) * 0x1p-11 + 0x1p-25);
  }
}

TEST(QuantizeG4Test, ShowsWhatItCannotExpress) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {NAN, -NAN, kInfinity, -kInfinity, 1e9F, -1e6F, 3e38F}) {
    for (const size_t at : {0, 1, 31, 63}) {
      Values values = normal_values(192, 1, 5);
      values[64 + at] = bad;
      const Decoded out = through_g4(values);
      EXPECT_FALSE(out.good);
      for (size_t i = 0; i < 192; ++i) EXPECT_EQ(std::isnan(out.values[i]), i / 64 == 1) << bad;
    }
  }
  // These values are large, but within reach of an F16 minimum and fifteen F16 steps.
  Values large = normal_values(64, 1, 5);
  large[9] = 9e5F;
  large[10] = -6e4F;
  const Decoded out = through_g4(large);
  EXPECT_TRUE(out.good);
  EXPECT_NEAR(out.values[9], 9e5F, 500);
  EXPECT_NEAR(out.values[10], -6e4F, 32);
}

TEST(QuantizeG4Test, ReadsPlainTypesAtAnyAlignment) {
  const Values values = normal_values(64 * 9, 0.03F, 8);
  const auto count = static_cast<int64_t>(values.size());
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<std::byte> stored(static_cast<size_t>(row_bytes(type, count)) + 1);
    quantize_reference(type, values.data(), stored.data(), count);
    Values rounded(values.size());
    dequantize_reference(type, stored.data(), rounded.data(), count);
    std::memmove(stored.data() + 1, stored.data(), stored.size() - 1);
    std::vector<std::byte> expected(9 * sizeof(BlockG4)), actual(expected.size() + 1);
    EXPECT_TRUE(quantize_g4(rounded.data(), expected.data(), count));
    EXPECT_TRUE(quantize_g4(type, stored.data() + 1, actual.data() + 1, count));
    EXPECT_EQ(std::memcmp(actual.data() + 1, expected.data(), expected.size()), 0);
  }
  std::vector<std::byte> out(sizeof(BlockG4));
  EXPECT_THROW(quantize_g4(DType::kQ8_0, out.data(), out.data(), 64), Error);
  EXPECT_THROW(quantize_g4(values.data(), out.data(), 63), Error);
}

}  // namespace
}  // namespace spillway
