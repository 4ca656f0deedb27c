// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "cpu/dequantize/stored_test_data.h"
#include "cpu/linear/linear_args.h"
#include "cpu/linear/linear_bf16.h"
#include "device/tuning.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

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

// Returns y of some tokens with the kernels that the table's points select.
class TunedLinear {
 public:
  explicit TunedLinear(DType type) : stored_(awkward_blocks(type, kN * kK, 5)) {
    w_ = {type, kN, kK, stored_.data()};
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = std::sin(static_cast<float>(i));
  }
  std::vector<float> operator()(const TuningTable* table, bool deterministic = false) {
    device_.ops().set_tuning(table);
    device_.ops().set_deterministic(deterministic);
    std::vector<float> y(kTokens * kN);
    device_.ops().linear(w_, {}, {DType::kF32, kTokens, kK, kK, bytes(x_)},
                         {DType::kF32, kTokens, kN, kN, bytes(y)}, LinearMode::kStore);
    return y;
  }
  Ops& ops() { return device_.ops(); }
  const WeightView& w() const { return w_; }
  static constexpr int64_t kTokens = 5, kN = 40, kK = 512;

 private:
  static std::byte* bytes(std::vector<float>& values) {
    return reinterpret_cast<std::byte*>(values.data());
  }
  CpuDevice device_{{.threads = 2}};
  std::vector<std::byte> stored_;
  std::vector<float> x_ = std::vector<float>(kTokens * kK);
  WeightView w_;
};

TEST(LinearTuningTest, TheTableChoosesTheKernel) {
  TunedLinear linear(DType::kQ8_0);
  const bool has_gemm = cpu::has_bf16_product(linear.w());
  TuningTable gemm({2, 2}), flat({2, kNeverInflection}), gemv({kNeverInflection, kNeverInflection});
  const auto kernel = [&](const TuningTable* table, int64_t tokens) {
    linear.ops().set_tuning(table);
    return linear.ops().linear_kernel(linear.w(), tokens);
  };
  EXPECT_EQ(kernel(&gemm, 2), has_gemm ? LinearKernel::kGemm : LinearKernel::kFlat);
  EXPECT_EQ(kernel(&gemm, 1), LinearKernel::kGemv);
  EXPECT_EQ(kernel(&flat, 1000), LinearKernel::kFlat);
  EXPECT_EQ(kernel(&gemv, 1000), LinearKernel::kGemv);
  EXPECT_EQ(kernel(nullptr, 15), LinearKernel::kFlat);  // the default for matrices in rows
  EXPECT_EQ(kernel(nullptr, 16), has_gemm ? LinearKernel::kGemm : LinearKernel::kFlat);
  TuningTable one_shape;
  one_shape.set(shape_of(linear.w()), {2, 3});
  EXPECT_EQ(kernel(&one_shape, 3), has_gemm ? LinearKernel::kGemm : LinearKernel::kFlat);
}

TEST(LinearTuningTest, TheChosenKernelRuns) {
  TunedLinear linear(DType::kQ8_0);
  const TuningTable gemm({2, 2}), flat({2, kNeverInflection}),
      gemv({kNeverInflection, kNeverInflection});
  const std::vector<float> plain = linear(nullptr);
  EXPECT_EQ(linear(&flat), plain);
  EXPECT_EQ(linear(&gemv), plain);
  if (!cpu::has_bf16_product(linear.w())) GTEST_SKIP() << "no bfloat16 products here";
  const std::vector<float> rounded = linear(&gemm);
  EXPECT_NE(rounded, plain);
  double error = 0, norm = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    error += std::pow(double{rounded[i]} - plain[i], 2);
    norm += std::pow(double{plain[i]}, 2);
  }
  EXPECT_LT(error, 1e-4 * norm);
}

TEST(LinearTuningTest, DeterministicModeIgnoresTheTable) {
  TunedLinear linear(DType::kQ8_0);
  const TuningTable gemm({2, 2});
  EXPECT_EQ(linear(&gemm, true), linear(nullptr, true));
  linear.ops().set_tuning(&gemm);
  EXPECT_EQ(linear.ops().linear_kernel(linear.w(), 512), LinearKernel::kFlat);
}

// The matrices have one input in different forms, with biases that can be read in place or not.
TEST(LinearTest, SeveralAtOnceHaveTheBitsOfOneAfterTheOther) {
  struct Part {
    DType type;
    int64_t rows;
    DType bias;
    size_t bias_at;  // in bytes: aligned or not
  };
  constexpr Part kParts[] = {
      {DType::kQ4_K, 96, DType::kF32, 0},  {DType::kQ4_K, 40, DType::kF16, 0},
      {DType::kQ6_K, 48, DType::kF32, 1},  {DType::kF16, 33, DType::kF32, 2},
      {DType::kF16, 130, DType::kF32, 0},  {DType::kBF16, 7, DType::kBF16, 1},
      {DType::kF32, 21, DType::kF32, 0},   {DType::kQ8_0, 16, DType::kF32, 4},
      {DType::kQ3_K, 200, DType::kF32, 0}, {DType::kQ2_K, 0, DType::kF32, 0}};
  constexpr int64_t kCols = 256;
  for (const int threads : {1, 3}) {
    CpuDevice device({.threads = threads});
    for (const int64_t tokens : {1, 2, 7, 16, 90}) {
      std::vector<float> x(static_cast<size_t>(tokens * kCols));
      fill_random(DType::kF32, reinterpret_cast<std::byte*>(x.data()), tokens * kCols, 1, 1);
      const Activations input{DType::kF32, tokens, kCols, kCols,
                              reinterpret_cast<std::byte*>(x.data())};
      std::vector<std::vector<std::byte>> weights, biases;
      std::vector<std::vector<float>> together, alone;
      std::vector<Projection> parts;
      for (const Part& part : kParts) {
        auto& w =
            weights.emplace_back(static_cast<size_t>(row_bytes(part.type, kCols) * part.rows));
        fill_random(part.type, w.data(), part.rows * kCols, 2, 0.1F);
        const WeightLayout layout = device.preferred_layout(part.type, part.rows, kCols);
        if (layout == WeightLayout::kGroups16) {
          pack_groups(part.type, w.data(), w.data(), part.rows / kGroupRows, kCols);
        }
        auto& bias = biases.emplace_back(static_cast<size_t>(4 * part.rows) + 8);
        fill_random(part.bias, bias.data() + part.bias_at, part.rows, 3, 1);
        for (auto* out : {&together, &alone}) {
          out->emplace_back(static_cast<size_t>(tokens * part.rows), -1.0F);
        }
        const auto view = [&](std::vector<float>& out) {
          return Activations{DType::kF32, tokens, part.rows, part.rows,
                             reinterpret_cast<std::byte*>(out.data())};
        };
        const WeightView b{part.bias, 1, part.rows, bias.data() + part.bias_at};
        parts.push_back(
            {{part.type, part.rows, kCols, w.data(), layout}, b, view(together.back())});
        device.ops().linear(parts.back().w, b, input, view(alone.back()), LinearMode::kStore);
      }
      device.ops().linears(parts, input);
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(together[i], alone[i])
            << "part " << i << ", " << tokens << " tokens, " << threads << " threads";
      }
    }
  }
}

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
