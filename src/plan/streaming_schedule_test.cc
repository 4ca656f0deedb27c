// SPDX-License-Identifier: Apache-2.0
#include "plan/streaming_schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <utility>

#include "model/known_models.h"
#include "plan/weight_homes.h"

namespace spillway {
namespace {

std::vector<Tier> homes_of(const Model& model, const TierShares& shares,
                           Tier embeddings = Tier::kDevice) {
  return weight_homes(/*host_visible=*/false, model, {.shares = shares, .embeddings = embeddings});
}

// Checks that every row of every matrix that is not on the device is either the CPU's or copied,
// once and in order.
void expect_all_rows(const Model& model, const std::vector<Tier>& homes,
                     const StreamingSchedule& schedule) {
  std::map<std::pair<int, std::string_view>, int64_t> seen;
  std::pair<int, int> last{-1, 0};
  for (const StreamedLinear& linear : schedule.linears) {
    EXPECT_LT(last, std::pair(linear.layer, linear.op));
    last = {linear.layer, linear.op};
    const OpSpec& op = model.spec.lowered->layer(linear.layer).of(linear.op);
    EXPECT_EQ(op.name, linear.name);
    const auto take = [&](const OpRows& some) {
      for (const MatrixRows& rows : some) {
        const MatrixSpec& matrix = op.matrices.at(static_cast<size_t>(rows.matrix));
        int64_t& next = seen[{linear.layer, matrix.name}];
        EXPECT_EQ(rows.first, next);
        EXPECT_EQ(rows.first % kGroupRows, 0);
        EXPECT_GT(rows.count, 0);
        next += rows.count;
      }
    };
    take(linear.on_cpu);
    for (const auto& segment : linear.segments) take(segment);
  }
  for (size_t i = 0; i < homes.size(); ++i) {
    const WeightSlot& slot = model.weights[i].slot;
    const bool is_head = &model.weights[i] == try_head_of(model);
    if (slot.is_vector() || (!slot.in_layer() && !is_head)) continue;
    const auto key = is_head ? std::pair(model.spec.layer_count(), std::string_view("head"))
                             : std::pair(slot.layer, slot.name);
    EXPECT_EQ(seen[key], homes[i] == Tier::kDevice ? 0 : slot.rows);
  }
}

TEST(StreamingScheduleTest, EveryRowHasOnePlace) {
  std::mt19937 random(5);
  const auto share = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  for (const char* name : {"opt-125m", "tinyllama-1.1b:q4_0"}) {
    const Model model = describe_dummy_model(name);
    for (int round = 0; round < 20; ++round) {
      const double device = round == 0 ? 0 : share(), disk = round < 3 ? 0 : (1 - device) * share();
      const auto homes = homes_of(model, {device, 1 - device - disk, disk},
                                  round % 2 == 0 ? Tier::kHost : Tier::kDevice);
      for (const SlotContent slots : {SlotContent::kSegments, SlotContent::kLayers}) {
        for (const double on_cpu : {0.0, share(), 1.0}) {
          const StreamingSchedule schedule = streaming_schedule(
              model, homes, {.slots = slots, .cpu = {.share = on_cpu}, .segment_bytes = 1 << 20});
          expect_all_rows(model, homes, schedule);
        }
      }
    }
  }
}

TEST(StreamingScheduleTest, QueryKeyAndValueAreCutAsOneGateAndUpAtTheSameRows) {
  const Model model = describe_dummy_model("llama-2-7b:q4_0");
  const auto homes = homes_of(model, {0, 1, 0});
  const StreamingSchedule schedule =
      streaming_schedule(model, homes, {.slots = SlotContent::kLayers, .cpu = {.share = 0.5}});
  using Rows = std::vector<std::tuple<int, int64_t, int64_t>>;  // matrix, first, count
  const auto of = [](const OpRows& some) {
    Rows all;
    for (const MatrixRows& rows : some) all.emplace_back(rows.matrix, rows.first, rows.count);
    return all;
  };
  const StreamedLinear& project = schedule.linears[0];
  EXPECT_EQ(of(project.on_cpu), (Rows{{0, 0, 4096}, {1, 0, 2048}}));
  EXPECT_EQ(of(project.segments[0]), (Rows{{1, 2048, 2048}, {2, 0, 4096}}));
  const StreamedLinear& up = schedule.linears[2];
  EXPECT_EQ(up.name, "mlp_up");
  EXPECT_EQ(of(up.on_cpu), (Rows{{0, 0, 5504}, {1, 0, 5504}}));
}

TEST(StreamingScheduleTest, AModuleMayHaveAShareOfItsOwn) {
  const Model model = describe_dummy_model("llama-2-7b");
  const StreamingSchedule schedule =
      streaming_schedule(model, homes_of(model, {0, 1, 0}),
                         {.cpu = {.share = 0.5, .modules = {{"mlp_up", 0.25}, {"mlp_down", 0}}}});
  for (const StreamedLinear& linear : schedule.linears) {
    int64_t rows = 0;
    for (const MatrixRows& of : linear.on_cpu) rows += of.count;
    const int64_t expected = linear.name == "mlp_up"     ? 2 * 2752  // a quarter of gate and up
                             : linear.name == "mlp_down" ? 0
                             : linear.name == "qkv"      ? 3 * 4096 / 2
                                                         : 4096 / 2;
    EXPECT_EQ(rows, expected) << linear.name;
  }
}

TEST(StreamingScheduleTest, TheCpuHasNoPartInOpsWithSeveralHomes) {
  const Model model = describe_dummy_model("llama-2-7b:q4_0");
  for (const StreamedLinear& linear :
       streaming_schedule(model, homes_of(model, {0, 0, 1}), {.cpu = {.share = 0.5}}).linears)
    EXPECT_FALSE(linear.on_cpu.empty()) << "all of it on disk";
  const auto mixed = weight_homes(
      false, model, {.shares = {0, 1, 0}, .overrides = {{.matrix = "key", .home = Tier::kDisk}}});
  for (const StreamedLinear& linear :
       streaming_schedule(model, mixed, {.cpu = {.share = 0.5}}).linears)
    EXPECT_EQ(linear.on_cpu.empty(), linear.name == "qkv");
  const auto homes = weight_homes(
      false, model,
      {.shares = {0, 1, 0}, .overrides = {{.matrix = "mlp_gate", .home = Tier::kDevice}}});
  for (const StreamedLinear& linear :
       streaming_schedule(model, homes, {.cpu = {.share = 0.5}}).linears)
    EXPECT_EQ(linear.on_cpu.empty(), linear.name == "mlp_up");
}

TEST(StreamingScheduleTest, TheLargestOpOnDiskIsReadWhileOthersComeFromHostMemory) {
  const Model model = describe_dummy_model("llama-2-7b:f16");  // gate and up: 2 x 86 MiB
  const auto stages = [&](const TierShares& shares) {
    const auto homes = homes_of(model, shares, Tier::kHost);
    return stream_stages(model, homes,
                         streaming_schedules(model, homes, {}, SlotContent::kSegments));
  };
  EXPECT_EQ(stages({0.5, 0.5, 0}), kStreamStages);
  EXPECT_GE(stages({0, 0.5, 0.5}), kStreamStages + 86);
  EXPECT_LE(stages({0, 0.5, 0.5}), kStreamStages + 87);
  const Model large = describe_dummy_model("opt-175b");
  const auto homes = homes_of(large, {0, 0.9, 0.1}, Tier::kHost);
  EXPECT_EQ(
      stream_stages(large, homes, streaming_schedules(large, homes, {}, SlotContent::kSegments)),
      kStreamStages + static_cast<int>(kMostReadAheadBytes / kStreamReadBytes));
}

TEST(StreamingScheduleTest, SegmentsAreSmallOrWholeGroups) {
  const Model model = describe_dummy_model("opt-13b");
  const auto homes = homes_of(model, {0, 1, 0}, Tier::kHost);
  const StreamingSchedule segments =
      streaming_schedule(model, homes, {.slots = SlotContent::kSegments});
  const StreamingSchedule layers =
      streaming_schedule(model, homes, {.slots = SlotContent::kLayers});
  for (const StreamedLinear& linear : segments.linears) {
    for (const auto& segment : linear.segments) {
      int64_t bytes = 0;
      for (const MatrixRows& rows : segment)
        bytes += rows.count * (linear.name == "mlp_down" ? 20480 : 5120) * 2;
      EXPECT_LE(bytes, int64_t{34} << 20);
    }
  }
  for (const StreamedLinear& linear : layers.linears) {
    if (linear.layer < model.spec.layer_count()) {
      EXPECT_EQ(linear.segments.size(), 1U);
    }
  }
  // The four ops of a layer share a slot group, and the head comes last.
  EXPECT_EQ(layers.slot_groups()[3], 0);
  EXPECT_EQ(layers.slot_groups()[4], 1);
  EXPECT_EQ(layers.slot_groups().back(), 40);
  EXPECT_EQ(segments.slot_groups()[1], 1);
}

TEST(StreamingScheduleTest, AStepGoesByTheFirstShareForSoManyTokens) {
  const std::vector<CpuLinearShare> shares = {{1, 0.6}, {8, 0.5}, {64, 0.2}};
  EXPECT_EQ(schedule_for(shares, 1), 0U);
  EXPECT_EQ(schedule_for(shares, 2), 1U);
  EXPECT_EQ(schedule_for(shares, 64), 2U);
  EXPECT_EQ(schedule_for(shares, 65), 3U) << "without the CPU";
}

}  // namespace
}  // namespace spillway
