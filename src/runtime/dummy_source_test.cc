// SPDX-License-Identifier: Apache-2.0
#include "runtime/dummy_source.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

// Matrices of two types and sizes, a norm and a bias.
Model some_weights() {
  Model model;
  for (int layer = 0; layer < 2; ++layer) {
    model.weights.push_back(
        {{.layer = layer, .kind = OpKind::kNorm, .rows = 1, .cols = 64}, DType::kF32, {}});
    model.weights.push_back({{.layer = layer, .rows = 40, .cols = 64}, DType::kF16, {}});
    model.weights.push_back(
        {{.layer = layer, .is_bias = true, .rows = 1, .cols = 40}, DType::kF32, {}});
    model.weights.push_back({{.layer = layer, .rows = 48, .cols = 64}, DType::kQ8_0, {}});
    model.weights.push_back({{.layer = layer, .rows = 64, .cols = 96}, DType::kF16, {}});
  }
  return model;
}

class DummySourceTest : public testing::Test {
 protected:
  // Makes these weights together and returns their bytes.
  std::vector<std::vector<std::byte>> make(Device& device, WeightLayout layout,
                                           const std::vector<size_t>& numbers,
                                           const WeightLoadOptions& options = {}) {
    DummySource source(model_);
    std::vector<Buffer> memory;
    std::vector<WeightTarget> targets;
    for (const size_t number : numbers) {
      const BoundWeight& weight = model_.weights[number];
      memory.push_back(device.allocate(static_cast<size_t>(weight.bytes()), MemoryTag::kWeights));
      targets.push_back({&weight, is_quantized(weight.dtype) ? layout : WeightLayout::kRows,
                         memory.back().data()});
    }
    source.make(device, targets, options);
    std::vector<std::vector<std::byte>> made;
    for (const Buffer& buffer : memory) {
      made.emplace_back(buffer.bytes());
      device.copy_to_host(made.back().data(), buffer.data(), buffer.bytes());
    }
    return made;
  }

  const Model model_ = some_weights();
  const std::vector<size_t> all_ = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  TestMachine machine_{true};
};

// A plan decides where weights go, so every plan makes them in another order.
TEST_F(DummySourceTest, ValuesDoNotDependOnWhatElseIsMade) {
  for (const WeightLayout layout : {WeightLayout::kRows, WeightLayout::kGroups16}) {
    const auto together = make(machine_.host, layout, all_);
    for (const size_t number : {9, 4, 0, 7, 2, 3})
      EXPECT_EQ(make(machine_.host, layout, {number})[0], together[number]) << number;
    EXPECT_EQ(make(machine_.device(), layout, all_), together) << "in the device's memory";
  }
}

TEST_F(DummySourceTest, NoTwoMatricesAreEqualAndNormsMultiplyByOne) {
  const auto made = make(machine_.host, WeightLayout::kRows, all_);
  EXPECT_NE(made[1], made[6]);
  EXPECT_NE(made[3], made[8]);
  for (const size_t number : {0, 5}) {
    for (size_t i = 0; i < 64; ++i) {
      float scale = 0;
      std::memcpy(&scale, made[number].data() + 4 * i, 4);
      EXPECT_EQ(scale, 1.0F);
    }
  }
}

TEST_F(DummySourceTest, SaysHowFarItIsAndStopsWhenAsked) {
  uint64_t last = 0, all = 0;
  for (const BoundWeight& weight : model_.weights) all += DummySource(model_).bytes_to_make(weight);
  std::atomic<bool> cancel = false;
  WeightLoadOptions options;
  options.cancel = &cancel;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, all);
    last = done;
  };
  make(machine_.host, WeightLayout::kRows, all_, options);
  EXPECT_EQ(last, all);
  cancel = true;
  EXPECT_THROW(make(machine_.host, WeightLayout::kRows, all_, options), Error);
}

}  // namespace
}  // namespace spillway
