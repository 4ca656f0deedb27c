// SPDX-License-Identifier: Apache-2.0
// Tests linear and embed with every stored type.
#include <string>

#include "device/tuning.h"
#include "tensor/dequantize.h"
#include "tests/parity/parity_device.h"
#include "tests/parity/references.h"

namespace spillway::parity {
namespace {

// Returns the largest NMSE allowed for a matrix product, against double precision over the decoded
// weights. Kernels may round activations and, for many tokens, halves; they never round F32
// weights.
double linear_bar(DType type) {
  if (type == DType::kF32) return kFloatBar;
  if (type == DType::kBF16) return 2e-5;  // x is rounded to it: 2^-9, of few products
  return is_quantized(type) ? 1e-4 : 1e-5;
}

struct Shape {
  int64_t tokens, n, k;
};

class LinearParityTest : public testing::TestWithParam<StoredCase> {
 protected:
  DType type() const { return std::get<1>(GetParam()); }
  WeightLayout layout() const { return std::get<2>(GetParam()); }
  int64_t block() const { return dtype_info(type()).block_elements; }

  void check(const Shape& s, bool with_bias, LinearMode mode) {
    SCOPED_TRACE(testing::Message() << s.tokens << " tokens, [" << s.n << ", " << s.k << "], bias "
                                    << with_bias << ", accumulate " << static_cast<int>(mode));
    const Weights w = random_weights(device_, type(), s.n, s.k, 1, layout());
    const auto x = random_floats(s.tokens * s.k, 2);
    const auto start = random_floats(s.tokens * s.n, 3);
    const bool half_bias = s.n % 2 == 0 && device_.kind().any_vector_type;
    const DType bias_type = half_bias ? DType::kF16 : DType::kF32;
    const Weights bias = with_bias ? random_weights(device_, bias_type, 1, s.n, 4) : Weights();
    const Matrix input(device_, s.tokens, s.k, x);
    Matrix out(device_, s.tokens, s.n);
    const bool accumulate = mode == LinearMode::kAccumulate;
    if (accumulate) out.write(start);
    device_.ops().linear(w.view(), bias.view(), input.view(), out.view(), mode);
    const Doubles expected =
        linear_reference(x, w.values(), bias.values(), accumulate ? start : std::vector<float>(),
                         s.tokens, s.n, s.k);
    EXPECT_LE(nmse(out.read(), expected), linear_bar(type()));
    out.expect_guards();
    EXPECT_TRUE(same_bits(input.read(), x));
  }

  TestDevice device_{std::get<0>(GetParam())};
};

TEST_P(LinearParityTest, MatchesDoublePrecisionForAnyNumberOfTokens) {
  for (const int64_t tokens : {1, 2, 3, 5, 7, 17, 33, 65}) {
    check({tokens, 48, 2 * block() * (block() == 1 ? 64 : 1)}, false, LinearMode::kStore);
  }
}

TEST_P(LinearParityTest, MatchesDoublePrecisionForAnyNumberOfRows) {
  for (const int64_t rows : {1, 3, 15, 16, 17, 100}) {
    check({1, rows, block() * (block() == 1 ? 40 : 1)}, false, LinearMode::kStore);
    check({4, rows, block() * (block() == 1 ? 40 : 1)}, false, LinearMode::kStore);
  }
}

TEST_P(LinearParityTest, MatchesDoublePrecisionForAnyDepth) {
  for (const int64_t depth : {256, 512, 768, 1024, 1280, 2304, 5632}) {
    check({1, 20, depth}, false, LinearMode::kStore);
    check({9, 20, depth}, false, LinearMode::kStore);
  }
}

// Rows of quantized types are whole blocks, so only plain types have odd depths.
class PlainLinearParityTest : public LinearParityTest {};
TEST_P(PlainLinearParityTest, MatchesDoublePrecisionForOddDepths) {
  for (const int64_t depth : {1, 2, 15, 31, 67, 511, 513, 771, 1027}) {
    check({1, 17, depth}, false, LinearMode::kStore);
    check({6, 17, depth}, true, LinearMode::kStore);
  }
}

TEST_P(LinearParityTest, AddsBiasAndOldValues) {
  for (const int64_t tokens : {1, 7}) {
    for (const int64_t rows : {16, 33}) {
      check({tokens, rows, 1024}, true, LinearMode::kStore);
      check({tokens, rows, 1024}, false, LinearMode::kAccumulate);
      check({tokens, rows, 1024}, true, LinearMode::kAccumulate);
    }
  }
}

TEST_P(LinearParityTest, MatchesDoublePrecisionWhenThreadsShareTheWork) {
  check({1, 1000, 768}, true, LinearMode::kStore);
  check({40, 333, 768}, true, LinearMode::kAccumulate);
}

// Whatever kernels a tuning table selects, they differ in speed, not in what they compute.
TEST_P(LinearParityTest, EveryKindOfKernelMatchesDoublePrecision) {
  for (const InflectionPoints points :
       {InflectionPoints{kNeverInflection, kNeverInflection}, InflectionPoints{2, kNeverInflection},
        InflectionPoints{2, 2}}) {
    SCOPED_TRACE(testing::Message() << "m1 " << points.m1 << ", m2 " << points.m2);
    const TuningTable table(points);
    device_.ops().set_tuning(&table);
    for (const int64_t tokens : {2, 5, 17, 67}) {
      check({tokens, 37, 768}, true, LinearMode::kStore);
      check({tokens, 200, 512}, false, LinearMode::kAccumulate);
    }
    device_.ops().set_tuning(nullptr);
  }
}

TEST_P(LinearParityTest, EmbeddingIsTheStoredValue) {
  const int64_t dim = 512 + (is_quantized(type()) ? 0 : 5), entries = 19;
  const Weights table = random_weights(device_, type(), entries, dim, 7, layout());
  for (const size_t count : {1, 3, 100}) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * 7 + 3) % 19));
    const auto rows = static_cast<int64_t>(count);
    Matrix out(device_, rows, dim);
    device_.ops().embed(table.view(), ids, out.view(), LinearMode::kStore);
    const auto values = out.read();
    const auto start = random_floats(rows * dim, 8);
    Matrix sum(device_, rows, dim, start);
    device_.ops().embed(table.view(), ids, sum.view(), LinearMode::kAccumulate);
    const auto sums = sum.read();
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t id = static_cast<size_t>(ids[i / static_cast<size_t>(dim)]);
      const float expected =
          table.values()[id * static_cast<size_t>(dim) + i % static_cast<size_t>(dim)];
      ASSERT_EQ(values[i], expected);
      ASSERT_EQ(sums[i], start[i] + expected);
    }
    out.expect_guards();
    sum.expect_guards();
  }
}

// Matrices in host memory are multiplied there and by a GPU that fetches them, so both must use one
// layout.
TEST(LayoutParityTest, DevicesAgreeOnEveryTypesLayout) {
  const auto first = device_kinds().front().make(1);
  const auto layout = [](const Device& device, DType type) {
    return device.preferred_layout(type, 256, 256);
  };
  if (layout(*first, DType::kQ8_0) == WeightLayout::kRows)
    GTEST_SKIP() << "no integer kernels for this processor";
  for (const DeviceKind& kind : device_kinds()) {
    const auto device = kind.make(1);
    for (const DType type : kAllDTypes) {
      EXPECT_EQ(layout(*device, type), layout(*first, type))
          << kind.name << ", " << dtype_name(type);
    }
  }
}

std::vector<StoredCase> plain_cases() {
  std::vector<StoredCase> cases = stored_cases();
  std::erase_if(cases, [](const StoredCase& c) { return is_quantized(std::get<1>(c)); });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Devices, LinearParityTest, testing::ValuesIn(stored_cases()),
                         stored_case_name);
INSTANTIATE_TEST_SUITE_P(Devices, PlainLinearParityTest, testing::ValuesIn(plain_cases()),
                         stored_case_name);

}  // namespace
}  // namespace spillway::parity
