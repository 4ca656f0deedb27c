// SPDX-License-Identifier: Apache-2.0
#include "tensor/quantize_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "tensor/dequantize.h"

namespace spillway {
namespace {

constexpr DType kBlockTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                 DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::vector<float> gaussian(size_t count, float deviation, unsigned seed = 7) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}
// Student's t distribution with 4 degrees of freedom has a few outliers, as weights have.
std::vector<float> heavy_tailed(size_t count, float deviation) {
  std::mt19937 random(11);
  std::student_t_distribution<float> student(4);
  std::vector<float> values(count);
  for (float& value : values) value = deviation * student(random);
  return values;
}

std::vector<std::byte> quantized(DType type, const std::vector<float>& values) {
  std::vector<std::byte> stored(
      static_cast<size_t>(row_bytes(type, static_cast<int64_t>(values.size()))));
  EXPECT_TRUE(
      quantize_blocks(type, values.data(), stored.data(), static_cast<int64_t>(values.size())))
      << dtype_name(type);
  return stored;
}
std::vector<float> there_and_back(DType type, const std::vector<float>& values) {
  std::vector<float> back(values.size());
  dequantize_reference(type, quantized(type, values).data(), back.data(),
                       static_cast<int64_t>(values.size()));
  return back;
}
bool accepts(DType type, std::vector<float> values) {
  values.resize(256);
  std::vector<std::byte> stored(static_cast<size_t>(row_bytes(type, 256)));
  return quantize_blocks(type, values.data(), stored.data(), 256);
}

double rms(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return std::sqrt(sum / static_cast<double>(values.size()));
}
double relative_error(const std::vector<float>& values, const std::vector<float>& back) {
  std::vector<float> off(values.size());
  for (size_t i = 0; i < off.size(); ++i) off[i] = values[i] - back[i];
  return rms(off) / rms(values);
}

// The bounds are the measured errors plus a percent.
TEST(QuantizeBlocksTest, ErrorsStayWithinWhatTheSearchReaches) {
  const struct {
    DType type;
    double gaussian, heavy_tailed;
  } kBounds[] = {
      {DType::kQ4_0, 0.0812, 0.1116},  {DType::kQ4_1, 0.0700, 0.0844},
      {DType::kQ5_0, 0.0401, 0.0563},  {DType::kQ5_1, 0.0338, 0.0409},
      {DType::kQ8_0, 0.00536, 0.0074}, {DType::kQ4_K, 0.0701, 0.0850},
      {DType::kQ5_K, 0.0346, 0.0421},  {DType::kQ6_K, 0.0167, 0.0219},
  };
  const auto plain = gaussian(64 * 4096, 0.02F), heavy = heavy_tailed(64 * 4096, 0.02F);
  for (const auto& bound : kBounds) {
    EXPECT_LT(relative_error(plain, there_and_back(bound.type, plain)), 1.01 * bound.gaussian)
        << dtype_name(bound.type);
    EXPECT_LT(relative_error(heavy, there_and_back(bound.type, heavy)), 1.01 * bound.heavy_tailed)
        << dtype_name(bound.type);
  }
}

TEST(QuantizeBlocksTest, ASearchIsBetterThanTheRangeAlone) {
  const auto values = gaussian(16 * 4096, 1);
  for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1}) {
    std::vector<std::byte> stored(
        static_cast<size_t>(row_bytes(type, static_cast<int64_t>(values.size()))));
    quantize_reference(type, values.data(), stored.data(), static_cast<int64_t>(values.size()));
    std::vector<float> back(values.size());
    dequantize_reference(type, stored.data(), back.data(), static_cast<int64_t>(values.size()));
    EXPECT_LT(relative_error(values, there_and_back(type, values)),
              0.97 * relative_error(values, back))
        << dtype_name(type);
  }
}

TEST(QuantizeBlocksTest, TheScaleOfTheValuesDoesNotMatter) {
  for (const DType type : kBlockTypes) {
    const double at_one =
        relative_error(gaussian(8192, 1), there_and_back(type, gaussian(8192, 1)));
    for (const float deviation : {1e-2F, 30.0F, 1e4F}) {
      const auto values = gaussian(8192, deviation);
      EXPECT_NEAR(relative_error(values, there_and_back(type, values)) / at_one, 1, 0.05)
          << dtype_name(type) << " at " << deviation;
    }
  }
}

TEST(QuantizeBlocksTest, WhatATypeHoldsExactlyStays) {
  for (const DType type : kBlockTypes) {
    const auto once = there_and_back(type, gaussian(8192, 0.5F));
    // The scales of scales are only found again up to a step.
    const bool simple = dtype_info(type).block_elements == 32;
    EXPECT_LT(relative_error(once, there_and_back(type, once)), simple ? 1e-3 : 0.02)
        << dtype_name(type);
  }
}

TEST(QuantizeBlocksTest, BlocksOfOneValueAreThatValue) {
  for (const DType type : kBlockTypes) {
    for (const float value : {0.0F, -0.0F, 1.0F, -1.0F, 1e-3F, -12.5F, 1e-42F}) {
      for (const float back : there_and_back(type, std::vector<float>(256, value))) {
        EXPECT_NEAR(back, value, 0.01F * std::fabs(value) + 1e-6F)
            << dtype_name(type) << " of " << value;
      }
    }
  }
}

TEST(QuantizeBlocksTest, AnOutlierAmongZerosIsKept) {
  for (const DType type : kBlockTypes) {
    for (const float outlier : {3.0F, -3.0F}) {
      std::vector<float> values(256, 0.0F);
      values[77] = outlier;
      const auto back = there_and_back(type, values);
      EXPECT_NEAR(back[77], outlier, 0.01F) << dtype_name(type);
      EXPECT_LT(relative_error(values, back), 0.01) << dtype_name(type);
    }
  }
}

TEST(QuantizeBlocksTest, RefusesWhatCannotBeStored) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType type : kBlockTypes) {
    for (const float value : {nan, infinity, -infinity, 3e38F, -1e9F}) {
      std::vector<float> values = gaussian(256, 1);
      values[200] = value;
      EXPECT_FALSE(accepts(type, values)) << dtype_name(type) << " of " << value;
    }
    EXPECT_TRUE(accepts(type, gaussian(256, 1000))) << dtype_name(type);
  }
  EXPECT_FALSE(accepts(DType::kF16, {70000}));
  EXPECT_TRUE(accepts(DType::kF16, {65504, nan, infinity}));
  EXPECT_FALSE(accepts(DType::kBF16, {3.4e38F}));
  EXPECT_TRUE(accepts(DType::kF32, {3.4e38F, nan}));
}

TEST(QuantizeBlocksTest, BytesDoNotDependOnHowTheWorkIsCut) {
  const auto values = gaussian(4096, 0.1F);
  for (const DType type : kBlockTypes) {
    const auto whole = quantized(type, values);
    std::vector<std::byte> pieces;
    for (size_t i = 0; i < values.size(); i += 256) {
      const auto piece = quantized(type, {values.begin() + static_cast<std::ptrdiff_t>(i),
                                          values.begin() + static_cast<std::ptrdiff_t>(i + 256)});
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(whole, pieces) << dtype_name(type);
  }
}

TEST(QuantizeBlocksTest, SaysWhichTypesItMakes) {
  for (const DType type : kAllDTypes) {
    const std::vector<float> values(256, 1.0F);
    std::vector<std::byte> stored(static_cast<size_t>(row_bytes(type, 256)));
    if (type != DType::kQ2_K && type != DType::kQ3_K && !is_memory_only(type)) {
      EXPECT_TRUE(quantize_blocks(type, values.data(), stored.data(), 256)) << dtype_name(type);
    } else {
      EXPECT_THROW((void)quantize_blocks(type, values.data(), stored.data(), 256), Error);
    }
  }
}

}  // namespace
}  // namespace spillway
