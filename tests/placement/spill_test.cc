// SPDX-License-Identifier: Apache-2.0
// KV and activations that cannot be read back from disk are computed again: answers are the same, a
// little later.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/fault_points.h"
#include "tests/placement/answers.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

class SpillTest : public testing::Test {
 protected:
  void TearDown() override { disarm_faults(); }

  SpillTest() : placed_(false, on_disk(), "llama", DType::kF32, KvType::kF32, true) {}
  static Placement on_disk() {
    Placement placement;
    placement.name = "KV on disk";
    placement.device_sequences = 0;
    placement.disk_sequences = 1;
    placement.host_share = 0;
    return placement;
  }
  Outcome run() { return run(placed_); }
  static Outcome run(PlacedModel& placed) {
    return answer_all(placed, {.admission = {.max_sequences = 4}},
                      {{5, 9}, {14, 9}, {23, 9}, {32, 9}, {41, 9}, {50, 9}});
  }

  PlacedModel placed_;
};

TEST_F(SpillTest, LostPagesAreComputedAgain) {
  const Outcome expected = run();
  EXPECT_EQ(expected.stats.preemptions, 0);
  int recomputed = 0;
  for (const uint64_t nth : {1, 2, 7, 30, 61, 100, 150}) {
    arm_fault("io.read", nth, FaultKind::kEio);
    const Outcome outcome = run();
    disarm_faults();
    EXPECT_EQ(outcome.answers, expected.answers) << nth;
    recomputed += outcome.stats.preemptions > 0 ? 1 : 0;
  }
  EXPECT_GE(recomputed, 5);  // the later reads may not be reached
}

// Computing a sequence again gives its next token without a read: even a disk that never gives
// anything back only costs time.
TEST_F(SpillTest, ADiskThatGivesNothingBackOnlyCostsTime) {
  const Outcome expected = run();
  arm_fault("io.read", 1, FaultKind::kEio, 1'000'000);
  const Outcome outcome = run();
  EXPECT_EQ(outcome.answers, expected.answers);
  EXPECT_GT(outcome.stats.preemptions, 6);
}

// Activations are needed in every step: a failed step is computed again, and a disk that never
// gives anything back is reported.
TEST_F(SpillTest, SoAreLostActivations) {
  const Outcome expected = run();
  for (const bool on_cpu : {false, true}) {
    Placement placement;
    placement.name = "activations on disk";
    placement.on_cpu = on_cpu;
    placement.activations = {0, 0, 1};
    placement.micro_sequences = 2;
    PlacedModel placed(false, placement, "llama", DType::kF32, KvType::kF32, true);
    EXPECT_EQ(run(placed).answers, expected.answers);
    EXPECT_GT(placed.decoder->take_stats().activations.disk_read_bytes, 0u);
    for (const char* point : {"io.read", "spill.flip"}) {
      for (const uint64_t nth : {1, 2, 7, 30, 61}) {
        SCOPED_TRACE(fmt::format("{} {}, CPU {}", point, nth, on_cpu));
        arm_fault(point, nth, FaultKind::kEio);
        const Outcome outcome = run(placed);
        disarm_faults();
        EXPECT_EQ(outcome.answers, expected.answers);
        EXPECT_GT(outcome.stats.preemptions, 0);
      }
    }
    arm_fault("io.read", 5, FaultKind::kEio, 1'000'000);
    try {
      run(placed);
      FAIL() << "nothing can be computed so";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
    disarm_faults();
    EXPECT_EQ(run(placed).answers, expected.answers);
  }
}

}  // namespace
}  // namespace spillway::placement
