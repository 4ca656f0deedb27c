// SPDX-License-Identifier: Apache-2.0
// A request's answer does not depend on the schedule: when it is admitted, what runs beside it, and
// how steps are divided.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "tests/placement/answers.h"
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
      {"zigzag", {.admission = {.max_sequences = all, .admit_in_blocks = true}}},
      {"zigzag in micro-batches",
       {.admission = {.max_sequences = all, .admit_in_blocks = true}},
       2},
      // Prompts are longer than a step, and batch blocks take several steps to begin.
      {"zigzag in chunks",
       {.max_step_tokens = 23, .admission = {.max_sequences = all, .admit_in_blocks = true}},
       2},
      // There is less KV than the sequences need: batch blocks are cut short, sequences are
      // preempted.
      {"zigzag short of memory",
       {.admission = {.max_sequences = 3 * all, .admit_in_blocks = true}}},
      {"diagonal, one a step", {.admission = {.max_sequences = all, .max_admissions = 1}}},
      {"diagonal, two a step, in micro-batches",
       {.admission = {.max_sequences = all, .max_admissions = 2}},
       3},
      {"diagonal by the answers", {.admission = {.max_sequences = all, .stagger = true}}},
      {"diagonal short of memory", {.admission = {.max_sequences = 3 * all, .max_admissions = 1}}},
      {"row", {.admission = {.max_sequences = 2, .admit_in_blocks = true}}, 2},
      {"one after the other", {.admission = {.max_sequences = 1}}},
  };
}

std::vector<Lengths> mixed_lengths() {
  std::vector<Lengths> lengths;
  for (int i = 0; i < 13; ++i) lengths.push_back({1 + (i * 17) % 45, 1 + (i * 11) % 30});
  return lengths;
}

// Makes the models that the schedules need, each once.
class PlacedModels {
 public:
  PlacedModels(bool cuda, Placement placement, std::string kind)
      : cuda_(cuda), placement_(std::move(placement)), kind_(std::move(kind)) {}

  PlacedModel& with(int micro_sequences) {
    std::unique_ptr<PlacedModel>& model = models_[micro_sequences];
    placement_.micro_sequences = micro_sequences;
    if (!model) {
      model = std::make_unique<PlacedModel>(cuda_, placement_, kind_, DType::kF32, KvType::kF32,
                                            /*deterministic=*/true);
    }
    return *model;
  }

 private:
  bool cuda_;
  Placement placement_;
  std::string kind_;
  std::map<int, std::unique_ptr<PlacedModel>> models_;
};

Outcome run(PlacedModels& models, const Schedule& schedule,
            const std::vector<Lengths>& lengths = mixed_lengths()) {
  return answer_all(models.with(schedule.micro_sequences), schedule.options, lengths);
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
    PlacedModels at_home(GetParam(), home, kind);
    const Outcome expected = run(at_home, {"at once", {}});
    for (const Placement& placement : placements) {
      // The CPU rounds otherwise than the GPU.
      if (GetParam() && placement.computes_on_host()) continue;
      PlacedModels models(GetParam(), placement, kind);
      for (const Schedule& schedule : every_schedule()) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", kind, placement.name, schedule.name));
        EXPECT_EQ(run(models, schedule).answers, expected.answers);
      }
    }
  }
}

// The schedules differ in how many sequences run in a step.
TEST_P(ScheduleTest, ReplacingSequencesTakesFewerStepsThanBlocks) {
  Placement home;
  home.name = "all on the device";
  const int all = PlacedModel::kSequences;
  PlacedModels models(GetParam(), home, "llama");
  const auto stats = [&](const EngineOptions& options) { return run(models, {"", options}).stats; };
  const EngineStats blocks = stats({.admission = {.max_sequences = all, .admit_in_blocks = true}});
  const EngineStats replaced = stats({.admission = {.max_sequences = all}});
  const EngineStats row = stats({.admission = {.max_sequences = 2, .admit_in_blocks = true}});
  EXPECT_LT(replaced.steps, blocks.steps);
  EXPECT_LT(blocks.steps, row.steps);
  // A sequence runs in as many steps as its answer has tokens.
  EXPECT_EQ(blocks.sequence_steps, blocks.generated_tokens);
  EXPECT_EQ(replaced.sequence_steps, blocks.sequence_steps);
  EXPECT_EQ(row.sequence_steps, blocks.sequence_steps);
}

// There is as much KV as the sequences need, in two tiers, so no sequence grows beyond the tier
// where it was admitted.
TEST_P(ScheduleTest, NoSequenceIsPreemptedWhereThereIsRoomForAll) {
  Placement spread;
  spread.name = "KV on both";
  spread.device_sequences = 0.4;
  spread.host_share = 0;
  const std::vector<Lengths> growing(PlacedModel::kSequences, {10, PlacedModel::kTokens - 10});
  PlacedModels models(GetParam(), spread, "llama");
  EXPECT_EQ(run(models, {"", {}}, growing).stats.preemptions, 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, ScheduleTest, testing::Bool(),
                         [](const auto& device) { return device.param ? "cuda" : "emulated"; });

}  // namespace
}  // namespace spillway::placement
