// SPDX-License-Identifier: Apache-2.0
// Tests that a slice of a matrix computes what those rows of the whole do, bit for bit, whichever
// kernel the number of tokens selects: two processors can share a linear layer without changing its
// result.
#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "tests/parity/parity_device.h"

namespace spillway::parity {
namespace {

class SliceTest : public testing::TestWithParam<StoredCase> {
 protected:
  static constexpr int64_t kDepth = 768;
  static constexpr std::array<int64_t, 3> kRows = {528, 64, 64};  // as q, k and v

  DType weight_type() const { return std::get<1>(GetParam()); }
  Weights weights(int64_t rows, uint32_t seed) {
    return random_weights(device_, weight_type(), rows, kDepth, seed, std::get<2>(GetParam()));
  }
  Weights bias(int64_t rows, uint32_t seed) {
    return random_weights(device_, DType::kF32, 1, rows, seed);
  }
  static WeightView columns(const Weights& bias, int64_t first, int64_t count) {
    return {DType::kF32, 1, count, bias.view().data + first * 4};
  }
  // Runs `body` as a step does: a GPU has kernels of its own for steps of one token, and others if
  // launches overlap.
  void in_step(int64_t tokens, const std::function<void()>& body) {
    const std::vector<int32_t> zeros(static_cast<size_t>(tokens));
    const SequenceSpan span{0, static_cast<int32_t>(tokens), 0, zeros};
    device_.ops().run_step(
        {.ids = zeros,
         .positions = zeros,
         .table_rows = zeros,
         .logit_rows = {},
         .spans = {&span, 1},
         .matrices = {.has_f32 = weight_type() == DType::kF32,
                      .has_16_bit = weight_type() == DType::kF16 || weight_type() == DType::kBF16,
                      .layer_bytes = 1 << 20},
         .layer_types = weight_type()},
        body);
  }
  // Returns the type of activations that ops pass to each other on this device.
  DType type() { return device_.device().activation_type(weight_type()); }

  TestDevice device_{std::get<0>(GetParam())};
};

constexpr int64_t kTokens[] = {1, 2, 5, 16, 33, 70, 200};

TEST_P(SliceTest, OfOneMatrix) {
  const int64_t n = 1108;  // four rows behind the last group of 16
  const Weights w = weights(n, 1), b = bias(n, 2);
  for (const int64_t tokens : kTokens) {
    const Matrix x(device_, tokens, kDepth, random_floats(tokens * kDepth, 3), type());
    const auto start = random_floats(tokens * n, 4);
    Matrix whole(device_, tokens, n, start), cut(device_, tokens, n, start);
    in_step(tokens, [&] {
      device_.ops().linear(w.view(), b.view(), x.view(), whole.view(), LinearMode::kAccumulate);
    });
    int64_t first = 0;
    for (const int64_t rows : {int64_t{16}, int64_t{640}, int64_t{448}, n - 1104}) {
      in_step(tokens, [&] {
        device_.ops().linear(w.view().slice(first, rows), columns(b, first, rows), x.view(),
                             cut.view().columns(first, rows), LinearMode::kAccumulate);
      });
      first += rows;
    }
    ASSERT_TRUE(same_bits(cut.read(), whole.read())) << tokens << " tokens";
  }
}

// Three matrices that share an input are sliced as one: a call has slices of all of them, some
// without rows.
TEST_P(SliceTest, OfSeveralWithOneInput) {
  std::vector<Weights> w, b;
  for (uint32_t i = 0; i < kRows.size(); ++i) {
    w.push_back(weights(kRows[i], 1 + i));
    b.push_back(bias(kRows[i], 10 + i));
  }
  const int64_t n = kRows[0] + kRows[1] + kRows[2];
  for (const int64_t tokens : kTokens) {
    const Matrix x(device_, tokens, kDepth, random_floats(tokens * kDepth, 3), type());
    // Computes rows [first, last) of the three matrices, counted as if one followed the other.
    const auto run = [&](const Matrix& out, int64_t first, int64_t last) {
      std::vector<Projection> parts;
      int64_t begin = 0;
      for (size_t i = 0; i < w.size(); ++i) {
        const int64_t from = std::clamp(first - begin, int64_t{0}, kRows[i]);
        const int64_t count = std::clamp(last - begin, int64_t{0}, kRows[i]) - from;
        parts.push_back({w[i].view().slice(from, count), columns(b[i], from, count),
                         out.view().columns(begin + from, count)});
        begin += kRows[i];
      }
      in_step(tokens, [&] { device_.ops().linears(parts, x.view()); });
    };
    const Matrix whole(device_, tokens, n, type()), cut(device_, tokens, n, type());
    run(whole, 0, n);
    run(cut, 0, 496);
    run(cut, 496, 544);
    run(cut, 544, 592);
    run(cut, 592, n);  // of the last one alone
    ASSERT_TRUE(same_bits(cut.read(), whole.read())) << tokens << " tokens";
  }
}

// With so many rows the work does not divide evenly among a GPU's thread blocks.
TEST_P(SliceTest, OfManyRows) {
  const int64_t n = 9744;
  const Weights w = weights(n, 1);
  for (const int64_t tokens : {1, 4, 16, 32}) {
    const Matrix x(device_, tokens, kDepth, random_floats(tokens * kDepth, 3), type());
    const Matrix whole(device_, tokens, n, type()), cut(device_, tokens, n, type());
    const auto run = [&](const Matrix& out, int64_t first, int64_t last) {
      in_step(tokens, [&] {
        device_.ops().linear(w.view().slice(first, last - first), {}, x.view(),
                             out.view().columns(first, last - first), LinearMode::kStore);
      });
    };
    run(whole, 0, n);
    run(cut, 0, 1040);
    run(cut, 1040, 6000);
    run(cut, 6000, n);
    ASSERT_TRUE(same_bits(cut.read(), whole.read())) << tokens << " tokens";
  }
}

TEST_P(SliceTest, OfAnMlp) {
  const int64_t n = 1104;
  const Weights gate = weights(n, 1), up = weights(n, 2), b = bias(n, 5);
  for (const int64_t tokens : kTokens) {
    const Matrix x(device_, tokens, kDepth, random_floats(tokens * kDepth, 3), type());
    const Matrix scratch(device_, tokens, n, type());
    const auto run = [&](const Matrix& out, bool gated, int64_t first, int64_t count) {
      const Projection of_up{up.view().slice(first, count), columns(b, first, count),
                             out.view().columns(first, count)};
      const Projection of_gate{
          gate.view().slice(first, count), {}, scratch.view().columns(first, count)};
      in_step(tokens, [&] {
        if (gated) {
          device_.ops().gated_linear(ActivationKind::kSilu, of_gate, of_up, x.view());
        } else {
          device_.ops().activated_linear(ActivationKind::kRelu, of_up, x.view());
        }
      });
    };
    for (const bool gated : {false, true}) {
      const Matrix whole(device_, tokens, n, type()), cut(device_, tokens, n, type());
      run(whole, gated, 0, n);
      run(cut, gated, 0, 336);
      run(cut, gated, 336, n - 336);
      ASSERT_TRUE(same_bits(cut.read(), whole.read())) << tokens << " tokens, gated " << gated;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SliceTest, testing::ValuesIn(stored_cases()), stored_case_name);

}  // namespace
}  // namespace spillway::parity
