// SPDX-License-Identifier: Apache-2.0
#include "tensor/random_fill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tensor/dequantize.h"

namespace spillway {
namespace {

class RandomFillTest : public testing::TestWithParam<DType> {};

TEST_P(RandomFillTest, HasTheAskedMeanAndDeviationAndRepeats) {
  const DType type = GetParam();
  const int64_t count = 256 * 400;
  std::vector<std::byte> stored(static_cast<size_t>(row_bytes(type, count)));
  auto again = stored;
  fill_random(type, stored.data(), count, 3, 0.02F);
  fill_random(type, again.data(), count, 3, 0.02F);
  EXPECT_EQ(stored, again);
  fill_random(type, again.data(), count, 4, 0.02F);
  EXPECT_NE(stored, again);

  std::vector<float> values(static_cast<size_t>(count));
  dequantize_reference(type, stored.data(), values.data(), count);
  double sum = 0, squares = 0;
  for (const float value : values) {
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += double{value} * value;
  }
  const double mean = sum / static_cast<double>(count);
  EXPECT_NEAR(mean, 0, 0.0015);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(count) - mean * mean), 0.02, 0.001);
}

INSTANTIATE_TEST_SUITE_P(Types, RandomFillTest, testing::ValuesIn(kAllDTypes),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

}  // namespace
}  // namespace spillway
