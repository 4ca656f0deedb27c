// SPDX-License-Identifier: Apache-2.0
// Tests ops that work row by row: norm, rope, activations, gather.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/parity/parity_device.h"
#include "tests/parity/references.h"

namespace spillway::parity {
namespace {

using RowParityTest = ParityTest;

class NormParityTest : public testing::TestWithParam<std::tuple<DeviceKind, DType>> {
 protected:
  TestDevice device_{std::get<0>(GetParam())};
};

TEST_P(NormParityTest, NormsMatchDoublePrecision) {
  const DType type = std::get<1>(GetParam());  // of weight and bias
  if (type != DType::kF32 && !device_.kind().any_vector_type)
    GTEST_SKIP() << "loading makes them F32 for it";
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int64_t dim : {1, 7, 64, 576, 1003, 4096}) {
      for (const int64_t rows : {1, 3, 33}) {
        auto x = random_floats(rows * dim, 1, 3);
        for (float& value : x) value += 5;  // a mean that must be subtracted
        const Weights weight = random_weights(device_, type, 1, dim, 2);
        const Weights bias = rows == 3 ? random_weights(device_, type, 1, dim, 3) : Weights();
        const Matrix input(device_, rows, dim, x);
        const Matrix out(device_, rows, dim);
        device_.ops().norm(kind, input.view(), weight.view(), bias.view(), 1e-5F, out.view());
        const Doubles expected =
            norm_reference(kind, x, weight.values(), bias.values(), 1e-5F, rows, dim);
        EXPECT_LE(nmse(out.read(), expected), kFloatBar) << dim << " x " << rows;
        out.expect_guards();
        device_.ops().norm(kind, input.view(), weight.view(), bias.view(), 1e-5F, input.view());
        EXPECT_TRUE(same_bits(input.read(), out.read()));
        input.expect_guards();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, NormParityTest,
                         testing::Combine(testing::ValuesIn(device_kinds()),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         typed_name);

TEST_P(RowParityTest, ActivationsMatchDoublePrecision) {
  for (const ActivationKind kind : {ActivationKind::kRelu, ActivationKind::kGelu,
                                    ActivationKind::kGeluTanh, ActivationKind::kSilu}) {
    for (const int64_t cols : {1, 5, 64, 1536, 5633}) {
      for (const int64_t rows : {1, 2, 17}) {
        const auto x = random_floats(rows * cols, 1, 3), up = random_floats(rows * cols, 2);
        Doubles alone, gated;
        for (size_t i = 0; i < x.size(); ++i) {
          alone.push_back(activation_reference(kind, x[i]));
          gated.push_back(alone.back() * up[i]);
        }
        const Matrix gate(device_, rows, cols, x), ups(device_, rows, cols, up);
        const Matrix out(device_, rows, cols), single(device_, rows, cols, x);
        device_.ops().gated_activate(kind, gate.view(), ups.view(), out.view());
        EXPECT_LE(nmse(out.read(), gated), kFloatBar);
        out.expect_guards();
        device_.ops().gated_activate(kind, gate.view(), ups.view(), ups.view());
        EXPECT_TRUE(same_bits(ups.read(), out.read()));
        device_.ops().activate(kind, single.view());
        EXPECT_LE(nmse(single.read(), alone), kFloatBar);
        single.expect_guards();
      }
    }
  }
}

TEST_P(RowParityTest, ScoresMatchDoublePrecision) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const int64_t vocab : {1, 5, 31, 160, 4099, 32001}) {
    for (const int64_t rows : {1, 3, 40}) {
      auto x = random_floats(rows * vocab, 1, 6);
      std::vector<int32_t> ids;
      for (int64_t r = 0; r < rows; ++r) {
        ids.push_back(static_cast<int32_t>((r * 7919 + 13) % vocab));
        float* const row = x.data() + r * vocab;
        if (r % 4 == 1 && vocab > 4) row[0] = row[1] = -kInf;       // tokens of probability 0
        if (r % 4 == 2 && vocab > 4) row[2] = row[vocab - 1] = 30;  // equal logits
        if (r % 4 == 3) row[vocab / 2] = r % 8 == 3 ? NAN : kInf;
      }
      const Matrix logits(device_, rows, vocab, x);
      std::vector<TokenScore> scores(ids.size());
      device_.ops().score(logits.view(), ids, scores);
      for (int64_t r = 0; r < rows; ++r) {
        const float* const row = x.data() + r * vocab;
        const TokenScore& score = scores[static_cast<size_t>(r)];
        SCOPED_TRACE(testing::Message() << "row " << r << " of " << rows << ", " << vocab);
        if (r % 4 == 3) {
          EXPECT_TRUE(std::isnan(score.logprob));
          continue;
        }
        const float* const top = std::max_element(row, row + vocab);
        double sum = 0;
        for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i]) - *top);
        const double expected =
            static_cast<double>(row[ids[static_cast<size_t>(r)]]) - *top - std::log(sum);
        EXPECT_EQ(score.best, top - row);
        if (std::isinf(expected)) {
          EXPECT_EQ(score.logprob, -kInf);
        } else {
          EXPECT_NEAR(score.logprob, expected, 2e-6 * (1 + std::fabs(expected)));
        }
      }
      EXPECT_TRUE(same_bits(logits.read(), x));
      logits.expect_guards();
    }
  }
}

TEST_P(RowParityTest, ActivationsStandExtremeInputs) {
  const std::vector<float> x = {-1e30F, -1e4F,  -200, -100,  -88.5F, -20,  -0.0F,
                                0,      1e-30F, 20,   88.5F, 100,    1e4F, 1e30F};
  for (const ActivationKind kind : {ActivationKind::kRelu, ActivationKind::kGelu,
                                    ActivationKind::kGeluTanh, ActivationKind::kSilu}) {
    const Matrix values(device_, 1, static_cast<int64_t>(x.size()), x);
    device_.ops().activate(kind, values.view());
    const auto y = values.read();
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = activation_reference(kind, x[i]);
      EXPECT_NEAR(y[i], expected, 1e-6 * std::fabs(expected) + 1e-6) << x[i];
    }
  }
}

TEST_P(RowParityTest, RopeMatchesDoublePrecisionUpToLongContexts) {
  for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalves}) {
    for (const int64_t head_dim : {8, 64, 80, 128}) {
      for (const int64_t rotary : {head_dim, head_dim / 2, int64_t{6}}) {
        const std::vector<int32_t> positions = {0, 1, 100, 4095, 32767, 131071};
        const auto tokens = static_cast<int64_t>(positions.size());
        std::vector<float> frequencies;
        for (int64_t i = 0; i < rotary / 2; ++i) {
          frequencies.push_back(
              std::pow(10000.0F, -2.0F * static_cast<float>(i) / static_cast<float>(rotary)));
        }
        const auto x = random_floats(tokens * 3 * head_dim, 1);
        const Matrix values(device_, tokens, 3 * head_dim, x);
        const Matrix angles(device_, tokens, rotary / 2 * 2);
        device_.ops().rope_angles(positions, frequencies, 1.25F, angles.view());
        const auto pairs = angles.read();
        for (size_t i = 0; i < pairs.size(); i += 2) {
          const size_t half = static_cast<size_t>(rotary / 2);
          const double angle = double{frequencies[i / 2 % half]} * positions[i / 2 / half];
          ASSERT_NEAR(pairs[i], 1.25 * std::cos(angle), 1e-6);
          ASSERT_NEAR(pairs[i + 1], 1.25 * std::sin(angle), 1e-6);
        }
        angles.expect_guards();
        device_.ops().rope(values.view(), static_cast<int>(head_dim), angles.view(), style);
        EXPECT_LE(
            nmse(values.read(), rope_reference(x, positions, frequencies, 1.25, head_dim, style)),
            kFloatBar);
        values.expect_guards();
      }
    }
  }
}

TEST_P(RowParityTest, GatherCopiesTheRowsAskedFor) {
  const auto x = random_floats(50 * 77, 1);
  const Matrix from(device_, 50, 77, x);
  const std::vector<int32_t> rows = {49, 0, 7, 7, 13};
  const Matrix out(device_, 5, 77);
  device_.ops().gather_rows(from.view(), rows, out.view());
  const auto y = out.read();
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(y[i], x[static_cast<size_t>(rows[i / 77]) * 77 + i % 77]);
  }
  out.expect_guards();
}

INSTANTIATE_TEST_SUITE_P(Devices, RowParityTest, testing::ValuesIn(device_kinds()), kind_name);

}  // namespace
}  // namespace spillway::parity
