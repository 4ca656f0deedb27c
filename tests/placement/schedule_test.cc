// SPDX-License-Identifier: Apache-2.0
// A request's answer does not depend on the schedule: who begins when, who runs beside it, and how
// the step is cut.
#include <gtest/gtest.h>

#include <map>

#include "engine/engine.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

struct Schedule {
  std::string name;
  EngineOptions options;
  int micro_sequences = 0;
};

std::vector<Schedule> every_schedule() {
  const int all = PlacedModel::kSequences;
  return {
      {"zigzag", {.max_sequences = all, .admit_in_blocks = true}},
      {"zigzag in micro-batches", {.max_sequences = all, .admit_in_blocks = true}, 2},
      // Prompts longer than a step, and blocks that begin over several.
      {"zigzag in chunks",
       {.max_step_tokens = 23, .max_sequences = all, .admit_in_blocks = true},
       2},
      // More sequences than there is KV for: blocks are cut short, sequences are preempted.
      {"zigzag short of memory", {.max_sequences = 3 * all, .admit_in_blocks = true}},
      {"diagonal, one a step", {.max_sequences = all, .max_admissions = 1}},
      {"diagonal, two a step, in micro-batches", {.max_sequences = all, .max_admissions = 2}, 3},
      {"diagonal by the answers", {.max_sequences = all, .stagger = true}},
      {"diagonal short of memory", {.max_sequences = 3 * all, .max_admissions = 1}},
      {"row", {.max_sequences = 2, .admit_in_blocks = true}, 2},
      {"one after the other", {.max_sequences = 1}},
  };
}

struct Outcome {
  std::vector<std::vector<TokenId>> answers;
  EngineStats stats;
};

// Sampled, so that a wrong bit shows.
Outcome run(bool cuda, Placement placement, const Schedule& schedule, const std::string& kind) {
  placement.micro_sequences = schedule.micro_sequences;
  PlacedModel placed(cuda, placement, kind, DType::kF32, KvType::kF32, /*deterministic=*/true);
  Engine engine(*placed.decoder, *placed.kv, nullptr, schedule.options);
  constexpr int kRequests = 13;
  std::map<RequestId, size_t> indices;
  Outcome outcome;
  outcome.answers.resize(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    GenerationRequest request;
    request.prompt = testing_models::tiny_prompt(1 + (i * 17) % 45, static_cast<uint32_t>(i + 1));
    request.max_tokens = 1 + (i * 11) % 30;
    request.sampling.temperature = 1;
    request.sampling.seed = static_cast<uint64_t>(i);
    indices[engine.submit(std::move(request))] = static_cast<size_t>(i);
  }
  const auto sink = [&](const GenerationEvent& event) {
    EXPECT_EQ(event.error, "");
    if (event.token) outcome.answers[indices.at(event.id)].push_back(*event.token);
  };
  while (engine.step(sink)) {
    if (engine.stats().steps > 2000) {
      ADD_FAILURE() << "the engine does not come to an end";
      break;
    }
  }
  for (size_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(outcome.answers[i].size(), 1 + (i * 11) % 30);
  }
  outcome.stats = engine.stats();
  return outcome;
}

class ScheduleTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && list_cuda_devices().devices.empty()) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(ScheduleTest, AnswersDoNotDependOnTheSchedule) {
  Placement home, streamed, spread;
  home.name = "all on the device";
  streamed.name = "weights in all tiers, KV swapped";
  streamed.weights = {0.3, 0.3, 0.4};
  streamed.device_sequences = 0.4;
  streamed.host_share = 0;
  spread.name = "weights on disk, KV on both, attended to by both";
  spread.weights = {0, 0, 1};
  spread.device_sequences = 0.4;
  spread.host_share = 0.5;
  struct Case {
    const char* kind;
    std::vector<Placement> placements;
  };
  for (const auto& [kind, placements] : {Case{"llama", {home, streamed}}, {"opt", {spread}}}) {
    const Outcome expected = run(GetParam(), home, {"at once", {}}, kind);
    for (const Placement& placement : placements) {
      // The CPU's rounding is not the GPU's.
      if (GetParam() && placement.computes_on_host()) continue;
      for (const Schedule& schedule : every_schedule()) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", kind, placement.name, schedule.name));
        EXPECT_EQ(run(GetParam(), placement, schedule, kind).answers, expected.answers);
      }
    }
  }
}

// What the schedules differ in: how many sequences are at work in a step.
TEST_P(ScheduleTest, ReplacingSequencesTakesFewerStepsThanBlocks) {
  Placement home;
  home.name = "all on the device";
  const int all = PlacedModel::kSequences;
  const auto stats = [&](const EngineOptions& options) {
    return run(GetParam(), home, {"", options}, "llama").stats;
  };
  const EngineStats blocks = stats({.max_sequences = all, .admit_in_blocks = true});
  const EngineStats replaced = stats({.max_sequences = all});
  const EngineStats row = stats({.max_sequences = 2, .admit_in_blocks = true});
  EXPECT_LT(replaced.steps, blocks.steps);
  EXPECT_LT(blocks.steps, row.steps);
  // A sequence is at work in as many steps as its answer has tokens.
  EXPECT_EQ(blocks.sequence_steps, blocks.generated_tokens);
  EXPECT_EQ(replaced.sequence_steps, blocks.sequence_steps);
  EXPECT_EQ(row.sequence_steps, blocks.sequence_steps);
}

INSTANTIATE_TEST_SUITE_P(Devices, ScheduleTest, testing::Bool(),
                         [](const auto& device) { return device.param ? "cuda" : "emulated"; });

}  // namespace
}  // namespace spillway::placement
