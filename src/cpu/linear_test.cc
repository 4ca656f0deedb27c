// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "cpu/linear_args.h"
#include "cpu/stored_test_data.h"

namespace spillway {
namespace {

TEST(LinearCutTest, CoversEveryDepthInBlocksOf256) {
  for (int64_t size = 1; size < 6000; ++size) {
    int64_t k = 0;
    while (k < size) {
      const int64_t next = next_cut(k, size);
      ASSERT_GT(next, k);
      ASSERT_LE(next - k, kMaxCut);
      ASSERT_TRUE(next == size || next % 256 == 0);
      k = next;
    }
    ASSERT_EQ(k, size);
  }
}

class LinearKernelTest : public testing::TestWithParam<DType> {};

// The kernel for one token decodes in registers, by a shorter way than the one that stores.
TEST_P(LinearKernelTest, OneTokenAndManyGiveTheSameBitsForAwkwardScales) {
  const DType type = GetParam();
  const bool extreme = type == DType::kF32 || type == DType::kBF16;  // sums overflow at random bits
  CpuDevice device({.threads = 2});
  device.ops().set_deterministic(true);
  const int64_t n = 37, k = 1280, tokens = 3;
  auto stored = awkward_blocks(type, n * k, 5);
  if (extreme) {
    const size_t size = type == DType::kF32 ? 4 : 2;
    for (size_t i = size - 1; i < stored.size(); i += size) stored[i] = std::byte{0x3b};
  }
  std::vector<float> x(tokens * k), many(tokens * n), one(n);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  const WeightView w{type, n, k, stored.data()};
  const auto view = [](std::vector<float>& values, int64_t rows) -> Activations {
    const auto cols = static_cast<int64_t>(values.size()) / rows;
    return {DType::kF32, rows, cols, cols, reinterpret_cast<std::byte*>(values.data())};
  };
  const Activations input = view(x, tokens), output = view(many, tokens);
  device.ops().linear(w, {}, input, output, LinearMode::kStore);
  for (int64_t t = 0; t < tokens; ++t) {
    device.ops().linear(w, {}, input.row_range(t, 1), view(one, 1), LinearMode::kStore);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(std::isfinite(one[static_cast<size_t>(i)]));
      ASSERT_EQ(one[static_cast<size_t>(i)], many[static_cast<size_t>(t * n + i)]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearKernelTest, testing::ValuesIn(kAllDTypes),
                         [](const auto& suite) { return std::string(dtype_name(suite.param)); });

TEST(LinearTest, ShapesThatDoNotFitAreABug) {
  CpuDevice device({.threads = 1});
  std::vector<float> memory(1024);
  auto* data = reinterpret_cast<std::byte*>(memory.data());
  const WeightView w{DType::kF32, 4, 8, data};
  const Activations x{DType::kF32, 2, 8, 8, data}, out{DType::kF32, 2, 4, 4, data + 2048};
  const auto fails = [&](const WeightView& weight, const WeightView& bias, const Activations& in,
                         const Activations& to) {
    try {
      device.ops().linear(weight, bias, in, to, LinearMode::kStore);
      return false;
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInternal;
    }
  };
  EXPECT_FALSE(fails(w, {}, x, out));
  EXPECT_TRUE(fails(w, {}, x.columns(0, 7), out));
  EXPECT_TRUE(fails(w, {}, x.row_range(0, 1), out));
  EXPECT_TRUE(fails(w, {}, x, out.columns(0, 3)));
  EXPECT_TRUE(fails(w, {DType::kF32, 1, 3, data}, x, out));
}

TEST(LinearTest, NothingToDoIsFine) {
  CpuDevice device({.threads = 2});
  float value = 1;
  auto* data = reinterpret_cast<std::byte*>(&value);
  device.ops().linear({DType::kF32, 0, 1, data}, {}, {DType::kF32, 1, 1, 1, data},
                      {DType::kF32, 1, 0, 0, data}, LinearMode::kStore);
  device.ops().linear({DType::kF32, 1, 1, data}, {}, {DType::kF32, 0, 1, 1, data},
                      {DType::kF32, 0, 1, 1, data}, LinearMode::kStore);
  EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace spillway
