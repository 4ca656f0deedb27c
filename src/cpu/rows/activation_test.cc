// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/cpu_device.h"

namespace spillway {
namespace {

std::vector<float> activated(ActivationKind kind, std::vector<float> values) {
  CpuDevice device({.threads = 1});
  const auto cols = static_cast<int64_t>(values.size());
  device.ops().activate(kind,
                        {DType::kF32, 1, cols, cols, reinterpret_cast<std::byte*>(values.data())});
  return values;
}

// x * sigmoid(x) is as accurate as the exponential in it.
TEST(ActivationTest, SiluIsAccurateToAFewUnitsInTheLastPlace) {
  std::vector<float> x;
  for (float value = -80; value < 80; value += 0.00731F) x.push_back(value);
  const auto y = activated(ActivationKind::kSilu, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = double{x[i]} / (1 + std::exp(-double{x[i]}));
    ASSERT_NEAR(y[i], expected, 6e-7 * std::fabs(expected)) << x[i];
  }
}

TEST(ActivationTest, GeluIsAccurateWhereItMatters) {
  std::vector<float> x;
  for (float value = -6; value < 6; value += 0.000731F) x.push_back(value);
  const auto y = activated(ActivationKind::kGelu, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = double{x[i]} * std::erfc(-double{x[i]} / std::sqrt(2.0)) / 2;
    ASSERT_NEAR(y[i], expected, 4e-7 * std::fabs(x[i]) + 1e-12) << x[i];
  }
}

TEST(ActivationTest, NanStaysNan) {
  for (const ActivationKind kind : {ActivationKind::kRelu, ActivationKind::kGelu,
                                    ActivationKind::kGeluTanh, ActivationKind::kSilu}) {
    const auto y = activated(kind, {NAN, 1, NAN, 2, 3, 4, 5, 6, NAN});
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[2]) && std::isnan(y[8]));
    EXPECT_FALSE(std::isnan(y[1]));
  }
}

}  // namespace
}  // namespace spillway
