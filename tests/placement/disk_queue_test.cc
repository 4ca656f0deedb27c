// SPDX-License-Identifier: Apache-2.0
// Everything that a model has on disk goes through one queue.
#include <gtest/gtest.h>

#include "base/fault_points.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

constexpr uint64_t kNever = uint64_t{1} << 40;

class DiskQueueTest : public testing::TestWithParam<bool> {
 protected:
  void TearDown() override { disarm_faults(); }

  static Placement on_disk() {
    Placement p;
    p.name = "all of it on disk";
    p.weights = {0, 0, 1};
    p.device_sequences = 0;
    p.disk_sequences = 1;
    p.host_share = 0;
    p.activations = {0, 0, 1};
    p.micro_sequences = 2;
    p.on_cpu = GetParam();
    return p;
  }
};

TEST_P(DiskQueueTest, WeightsKvAndActivationsShareOneRing) {
  Placement in_memory;
  in_memory.name = "none of it on disk";
  in_memory.on_cpu = GetParam();
  const std::vector<float> expected =
      PlacedModel(false, in_memory, "llama", DType::kF32, KvType::kF32, true).run();

  arm_fault("io.uring_setup", kNever, FaultKind::kEio);  // never fires: counts
  PlacedModel placed(false, on_disk(), "llama", DType::kF32, KvType::kF32, true);
  EXPECT_EQ(placed.run(), expected);
  EXPECT_EQ(fault_hits("io.uring_setup"), 1u);
  const DecoderStats stats = placed.decoder->take_stats();
  const uint64_t weights = stats.weights.disk_bytes, kv = stats.swap.disk_read_bytes,
                 rows = stats.activations.disk_read_bytes;
  EXPECT_TRUE(weights > 0 && kv > 0 && rows > 0) << weights << ", " << kv << ", " << rows;
  EXPECT_GE(placed.queue.bytes_read(), weights + rows);
  EXPECT_GE(placed.queue.bytes_written(),
            stats.swap.disk_written_bytes + stats.activations.disk_written_bytes);
}

TEST_P(DiskQueueTest, NothingOnDiskTakesNoRing) {
  Placement in_memory;
  in_memory.name = "none of it on disk";
  in_memory.on_cpu = GetParam();
  arm_fault("io.uring_setup", kNever, FaultKind::kEio);
  PlacedModel placed(false, in_memory, "llama", DType::kF32, KvType::kF32, true);
  placed.run();
  EXPECT_EQ(fault_hits("io.uring_setup"), 0u);
}

INSTANTIATE_TEST_SUITE_P(Devices, DiskQueueTest, testing::Bool(),
                         [](const auto& each) { return each.param ? "Cpu" : "Accelerator"; });

}  // namespace
}  // namespace spillway::placement
