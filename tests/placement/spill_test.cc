// SPDX-License-Identifier: Apache-2.0
// KV on disk that does not come back is computed again: the same answers, a little later.
#include <gtest/gtest.h>

#include <map>

#include "base/fault_points.h"
#include "engine/engine.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

class SpillTest : public testing::Test {
 protected:
  void TearDown() override { disarm_faults(); }

  struct Outcome {
    std::vector<std::vector<TokenId>> answers;
    EngineStats stats;
  };
  static Outcome run(PlacedModel& placed) {
    Engine engine(*placed.decoder, *placed.kv, nullptr, {.max_sequences = 4});
    std::map<RequestId, size_t> indices;
    Outcome outcome;
    outcome.answers.resize(6);
    for (size_t i = 0; i < outcome.answers.size(); ++i) {
      GenerationRequest request;
      request.prompt = testing_models::tiny_prompt(5 + 9 * static_cast<int>(i), 3);
      request.max_tokens = 9;
      request.sampling.temperature = 1;
      request.sampling.seed = i;
      indices[engine.submit(std::move(request))] = i;
    }
    const auto sink = [&](const GenerationEvent& event) {
      EXPECT_EQ(event.error, "");
      if (event.token) outcome.answers[indices.at(event.id)].push_back(*event.token);
    };
    while (engine.step(sink)) {
    }
    outcome.stats = engine.stats();
    return outcome;
  }
};

TEST_F(SpillTest, LostPagesAreComputedAgain) {
  Placement placement;
  placement.name = "KV on disk";
  placement.device_sequences = 0;
  placement.disk_sequences = 1;
  placement.host_share = 0;
  PlacedModel placed(false, placement, "llama", DType::kF32, KvType::kF32, true);
  const Outcome expected = run(placed);
  EXPECT_EQ(expected.stats.preemptions, 0);
  int recomputed = 0;
  for (const uint64_t nth : {1, 2, 7, 30, 61, 100, 150}) {
    arm_fault("io.read", nth, FaultKind::kEio);
    const Outcome outcome = run(placed);
    disarm_faults();
    EXPECT_EQ(outcome.answers, expected.answers) << nth;
    recomputed += outcome.stats.preemptions > 0 ? 1 : 0;
  }
  EXPECT_GE(recomputed, 5);  // later ones may not be reached
}

// Computing a sequence again gives its next token without a read: even a disk that never gives
// anything back only costs time.
TEST_F(SpillTest, ADiskThatGivesNothingBackOnlyCostsTime) {
  Placement placement;
  placement.name = "KV on a broken disk";
  placement.device_sequences = 0;
  placement.disk_sequences = 1;
  placement.host_share = 0;
  PlacedModel placed(false, placement, "llama", DType::kF32, KvType::kF32, true);
  const Outcome expected = run(placed);
  arm_fault("io.read", 1, FaultKind::kEio, 1'000'000);
  const Outcome outcome = run(placed);
  EXPECT_EQ(outcome.answers, expected.answers);
  EXPECT_GT(outcome.stats.preemptions, 6);
}

}  // namespace
}  // namespace spillway::placement
