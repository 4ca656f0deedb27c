// SPDX-License-Identifier: Apache-2.0
// Allocations are refused, disks fail and files are damaged, while layers are swapped and blocks go
// to a store in host memory and on disk. The result must be an error that says so, or the same
// answers: never a crash, a leak or a wrong token.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fault_points.h"
#include "base/test_scoped_folder.h"
#include "kv/kv_store.h"
#include "memory/block_folder.h"
#include "storage/async_io.h"
#include "tests/generation/swapping_runtime.h"

namespace spillway::testing_models {
namespace {

class LayerSwappingFaultsTest : public testing::Test {
 protected:
  LayerSwappingFaultsTest() : folder_(std::filesystem::temp_directory_path()) {
    KvCache kv = runtime_.make_kv(200, 0);
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr, {});
    wanted_ = answers_of(engine, requests_);
  }
  ~LayerSwappingFaultsTest() override { disarm_faults(); }

  struct Run {
    std::vector<Answer> answers;
    KvStoreStats store;
    EngineStats engine;
  };
  // Runs all of a process: it makes a cache, a store on disk and an engine, and runs the requests.
  Run run() {
    KvCache kv = runtime_.make_kv(12, 7);
    IoQueue queue;
    auto folder =
        BlockFolder::try_open(queue, {.dir = folder_.path(),
                                      .block_bytes = static_cast<size_t>(kv.shape().block_bytes()),
                                      .salt = "tiny",
                                      .budget_bytes = 1 << 26});
    KvStore store(kv, *runtime_.transfers, runtime_.host, {.slots = 96}, std::move(folder));
    Decoder decoder = runtime_.make_decoder(64);
    Engine engine(decoder, kv, nullptr,
                  {.admission = {.max_sequences = 3}, .reuse_prefixes = true, .store = &store});
    engine.change_swapped_layers(5);
    constexpr int kSwapped[] = {7, 3, 6};
    Run run;
    run.answers = answers_of(engine, requests_, [&](int step) {
      if (step % 15 == 14) engine.change_swapped_layers(kSwapped[step / 15 % 3]);
    });
    run.store = store.stats();
    run.engine = engine.stats();
    return run;
  }

  // Does not count the workspace that kernels keep.
  uint64_t device_bytes_taken() const {
    const Device::Usage usage = runtime_.accelerator->usage();
    return usage.total() - usage.of(MemoryTag::kWorkspace);
  }

  SwappingRuntime runtime_{"llama-deep", /*max_delay_us=*/20};
  const std::vector<GenerationRequest> requests_ = requests_of(6);
  std::vector<Answer> wanted_;
  ScopedFolder folder_;
};

TEST_F(LayerSwappingFaultsTest, EveryAllocationMayFail) {
  const uint64_t device_bytes = device_bytes_taken();
  const uint64_t pinned_bytes = runtime_.accelerator->pinned_bytes();
  for (const char* point : {"alloc.device", "alloc.pin", "alloc.host", "alloc.aligned"}) {
    int refused = 0;
    for (uint64_t nth = 1; nth < 200; ++nth) {
      SCOPED_TRACE(testing::Message() << point << " " << nth);
      arm_fault(point, nth, FaultKind::kEnomem);
      try {
        EXPECT_EQ(run().answers, wanted_) << "done without it";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
        ++refused;
      }
      const bool was_hit = fault_hits(point) >= nth;
      disarm_faults();
      EXPECT_EQ(device_bytes_taken(), device_bytes);
      EXPECT_EQ(runtime_.accelerator->pinned_bytes(), pinned_bytes);
      if (!was_hit) break;
    }
    if (point == std::string("alloc.device")) EXPECT_GT(refused, 0);
    EXPECT_EQ(run().answers, wanted_);
  }
}

// Some blocks that another process has left on disk come back with a flipped bit.
TEST_F(LayerSwappingFaultsTest, DamagedBlocksAreComputedAgain) {
  EXPECT_EQ(run().answers, wanted_);
  for (const uint64_t nth : {1, 2, 5, 9}) {
    SCOPED_TRACE(nth);
    arm_fault("spill.flip", nth, FaultKind::kEio);
    const Run damaged = run();
    const bool was_hit = fault_hits("spill.flip") >= nth;
    disarm_faults();
    EXPECT_TRUE(was_hit);
    EXPECT_EQ(damaged.answers, wanted_);
    EXPECT_EQ(damaged.store.damaged, 1);
  }
  arm_fault("spill.flip", 1, FaultKind::kEio, ~uint64_t{0});
  const Run all = run();
  disarm_faults();
  EXPECT_EQ(all.answers, wanted_);
  EXPECT_GT(all.store.damaged, 3);
  EXPECT_EQ(all.engine.reused_disk_tokens, 0);
}

TEST_F(LayerSwappingFaultsTest, ADiskThatFailsChangesNoAnswer) {
  EXPECT_EQ(run().answers, wanted_);
  for (const FaultKind kind :
       {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr, FaultKind::kShort}) {
    for (const char* point : {"io.read", "io.write"}) {
      for (const uint64_t nth : {1, 2, 3, 6}) {
        SCOPED_TRACE(testing::Message()
                     << point << " " << nth << " kind " << static_cast<int>(kind));
        arm_fault(point, nth, kind);
        try {
          EXPECT_EQ(run().answers, wanted_);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
        }
        disarm_faults();
      }
    }
  }
  EXPECT_EQ(run().answers, wanted_);
}

}  // namespace
}  // namespace spillway::testing_models
