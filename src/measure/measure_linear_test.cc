// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_linear.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

// Ops that compute nothing: linear() advances a clock by the time its kernel would take.
class ClockOps final : public Ops {
 public:
  void set_deterministic(bool) override {}
  void set_tuning(const TuningTable* table) override { tuning = table; }
  LinearKernel linear_kernel(const WeightView& w, int64_t tokens) const override {
    std::optional<InflectionPoints> points;
    if (tuning != nullptr) points = tuning->try_points(shape_of(w));
    const LinearKernel kernel = kernel_at(points.value_or(InflectionPoints{}), tokens);
    return kernel == LinearKernel::kGemm && !has_gemm ? LinearKernel::kFlat : kernel;
  }
  void linear(const WeightView& w, const WeightView&, const Activations& x, const Activations& out,
              LinearMode) override {
    EXPECT_EQ(w.cols, x.cols);
    EXPECT_EQ(w.rows, out.cols);
    used.insert(w.data);
    ++calls;
    const double work = static_cast<double>(w.rows * w.cols) * 1e-10;
    const auto m = static_cast<double>(x.rows);
    switch (linear_kernel(w, x.rows)) {
      case LinearKernel::kGemv:
        now += work * m;
        break;
      case LinearKernel::kFlat:
        now += work * (0.8 + 0.2 * m);
        break;
      case LinearKernel::kGemm:  // wins from 10 tokens, or from 50 for narrow matrices
        now += work * (w.cols < 100 ? 5.8 + 0.1 * m : 1.8 + 0.1 * m);
        break;
    }
  }
  void embed(const WeightView&, std::span<const int32_t>, const Activations&, LinearMode) override {
  }
  void scale(const Activations&, float) override {}
  void add_norm(NormKind, const Activations&, const WeightView&, const WeightView&, float,
                const Activations&) override {}
  void norm(NormKind, const Activations&, const WeightView&, const WeightView&, float,
            const Activations&) override {}
  void rope_angles(std::span<const int32_t>, std::span<const float>, float,
                   const Activations&) override {}
  void rope(const Activations&, int, const Activations&, RopeStyle) override {}
  void kv_append(const Activations&, const Activations&, const KvLayerView&,
                 std::span<const SequenceSpan>) override {}
  void attention(const Activations&, const KvLayerView&, std::span<const SequenceSpan>,
                 const AttentionParams&, const Activations&) override {}
  void activate(ActivationKind, const Activations&) override {}
  void gated_activate(ActivationKind, const Activations&, const Activations&,
                      const Activations&) override {}
  void gather_rows(const Activations&, std::span<const int32_t>, const Activations&) override {}
  void copy(const Activations&, const Activations&) override {}
  void score(const Activations&, std::span<const int32_t>, std::span<TokenScore>) override {}

  double now = 0;
  int calls = 0;
  bool has_gemm = true;
  const TuningTable* tuning = nullptr;
  std::set<const std::byte*> used;
};

class ClockDevice final : public Device {
 public:
  const DeviceInfo& info() const override { return info_; }
  Buffer allocate(size_t bytes, MemoryTag tag) override {
    return Buffer(*this, static_cast<std::byte*>(std::malloc(bytes)), bytes, tag);
  }
  Usage usage() const override { return {}; }
  Ops& ops() override { return clock; }
  void synchronize() override {}
  bool host_visible() const override { return !own_memory; }
  void copy_to_device(std::byte*, const std::byte*, size_t) override {}

  ClockOps clock;
  bool own_memory = false;

 private:
  void release(std::byte* data, size_t, MemoryTag) noexcept override { std::free(data); }
  DeviceInfo info_{.name = "clock", .hardware = "none", .features = "", .threads = 2};
};

MeasureOptions with_clock(ClockDevice& device) {
  MeasureOptions options;
  options.seconds_now = [&device] { return device.clock.now; };
  return options;
}

std::byte* address(int i) { return reinterpret_cast<std::byte*>(uintptr_t{4096} * (i + 1)); }

std::vector<MatrixGroup> each_alone(const std::vector<WeightView>& matrices) {
  std::vector<MatrixGroup> groups;
  for (const WeightView& w : matrices) groups.push_back({w});
  return groups;
}

TEST(MeasureLinearTest, EveryDistinctShapeGetsItsPoints) {
  ClockDevice device;
  const std::vector<WeightView> matrices = {{DType::kF16, 512, 256, address(0)},
                                            {DType::kF16, 512, 256, address(100)},
                                            {DType::kF16, 512, 64, address(200)},
                                            {DType::kQ8_0, 512, 256, address(300)}};
  const TuningTable table = measure_linear(device, each_alone(matrices), with_clock(device));
  EXPECT_EQ(table.measured().size(), 3U);
  EXPECT_NEAR(table.try_points(shape_of(matrices[0]))->m2, 10, 1);
  EXPECT_NEAR(table.try_points(shape_of(matrices[2]))->m2, 50, 2);
  EXPECT_EQ(table.try_points(shape_of(matrices[3]))->m1, 2);
  EXPECT_TRUE(device.clock.used.contains(address(0)) && device.clock.used.contains(address(100)));
  EXPECT_EQ(device.clock.tuning, nullptr);
}

TEST(MeasureLinearTest, ADeviceWithoutGemmIsNotAskedForIt) {
  ClockDevice device;
  device.clock.has_gemm = false;
  const WeightView w{DType::kF16, 512, 256, address(0)};
  EXPECT_EQ(measure_linear(device, each_alone({w}), with_clock(device)).try_points(shape_of(w)),
            (InflectionPoints{2, kNeverInflection}));
}

TEST(MeasureLinearTest, LargeMatricesAreTakenInPiecesWithinTheBudget) {
  ClockDevice device;
  const WeightView w{DType::kF16, 32007, 8192, reinterpret_cast<std::byte*>(uintptr_t{1} << 40)};
  MeasureOptions options = with_clock(device);
  options.budget_s = 0.02;
  const TuningTable table = measure_linear(device, each_alone({w}), options);
  EXPECT_GT(device.clock.used.size(), 4U);
  EXPECT_LT(device.clock.now, 0.1);  // by the device's clock, not this machine's
  EXPECT_EQ(table.measured().count(shape_of(w)), 1U);
}

TEST(MeasureLinearTest, StopsWhenAsked) {
  ClockDevice device;
  const WeightView w{DType::kF16, 512, 256, address(0)};
  MeasureOptions options = with_clock(device);
  const std::atomic<bool> cancel{true};
  options.cancel = &cancel;
  try {
    measure_linear(device, each_alone({w}), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
  EXPECT_EQ(device.clock.tuning, nullptr);
}

TEST(MeasureLinearTest, ProgressEndsAtTheNumberOfShapes) {
  ClockDevice device;
  const std::vector<WeightView> matrices = {{DType::kF16, 512, 256, address(0)},
                                            {DType::kF16, 256, 512, address(0)}};
  MeasureOptions options = with_clock(device);
  uint64_t last = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 2U);
    EXPECT_GE(done, last);
    last = done;
  };
  measure_linear(device, each_alone(matrices), options);
  EXPECT_EQ(last, 2U);
}

TEST(MeasureLinearTest, MatricesOfAModelAreThoseThatAreMultiplied) {
  ModelWeights weights;
  const WeightView table{DType::kF16, 100, 32, address(0)};
  weights.embedding.ops = {{{.weight = table, .kind = OpKind::kEmbedding}}};
  weights.head.ops = {{{.weight = {DType::kF32, 1, 32, address(1)}, .kind = OpKind::kNorm}},
                      {{.weight = table}}};
  weights.layers.resize(2);
  for (ListWeights& layer : weights.layers) {
    layer.ops = {
        {{.weight = {DType::kF16, 32, 32, address(2)}, .bias = {DType::kF32, 1, 32, address(3)}}},
        {{.weight = {DType::kF16, 32, 64, address(4)}}}};
  }
  const auto groups = multiplied_matrices(ClockDevice(), weights);
  EXPECT_EQ(groups.size(), 5U);
  for (const MatrixGroup& group : groups) {
    EXPECT_EQ(group.size(), 1U);
    EXPECT_GT(group.front().rows, 1);
  }
}

// A device that multiplies q, k and v in one call is measured in the same way.
TEST(MeasureLinearTest, WhatIsMultipliedTogetherIsMeasuredTogether) {
  ClockDevice device;
  device.own_memory = true;
  ModelWeights weights;
  weights.head.ops = {{{.weight = {DType::kF16, 100, 32, address(0)}}}};
  const MatrixWeights query{.weight = {DType::kF16, 64, 32, address(1)}},
      key{.weight = {DType::kF16, 32, 32, address(2)}},
      gate{.weight = {DType::kQ8_0, 96, 32, address(4)}},  // another type, so in a group of its own
      up{.weight = {DType::kF16, 96, 32, address(3)}};
  weights.layers = {{.ops = {{query, key, key}, {gate, up}}}};
  const auto groups = multiplied_matrices(device, weights);
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].size(), 3U);
  const TuningTable table = measure_linear(device, groups, with_clock(device));
  EXPECT_EQ(table.measured().count({DType::kF16, WeightLayout::kRows, 128, 32}), 1U);
}

}  // namespace
}  // namespace spillway
