// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_splits.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "model/known_models.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

// These sizes are small enough for any machine; the results say nothing about its speed.
const MeasureSplitsOptions kTiny{.tokens = {1, 8}, .rotate_bytes = 1 << 20, .point_s = 0.002};

TEST(MeasureSplitsTest, EachShapeAndNumberOfTokensHasACurve) {
  TestMachine machine(true);
  const std::vector<SplitShape> shapes{{DType::kF16, 256, 256}, {DType::kQ4_0, 512, 256}};
  MeasurePace pace(1, nullptr, {});
  const auto curves =
      measure_splits(machine.host, machine.device(), read_hardware("h200"), shapes, kTiny, pace);
  ASSERT_EQ(curves.size(), 4U);
  for (const SplitCurve& curve : curves) {
    EXPECT_GT(curve.cpu.all_s, 0);
    EXPECT_GT(curve.link.all_s, 0);
    EXPECT_GE(curve.crossing(), 0);
    EXPECT_LE(curve.crossing(), 1);
  }
  EXPECT_EQ(curves[0].shape, shapes[0]);
  EXPECT_EQ(curves[3].tokens, 8);
}

TEST(MeasureSplitsTest, ShapesOfAModelComeOnce) {
  const auto shapes = split_shapes(describe_dummy_model("opt-125m"));
  EXPECT_EQ(shapes.size(), 5U);
}

TEST(MeasureSplitsTest, CanBeStopped) {
  TestMachine machine(true);
  const std::atomic<bool> stop = true;
  MeasurePace pace(1, &stop, {});
  EXPECT_THROW(measure_splits(machine.host, machine.device(), read_hardware("h200"),
                              {{DType::kF16, 256, 256}}, kTiny, pace),
               Error);
}

}  // namespace
}  // namespace spillway
