// SPDX-License-Identifier: Apache-2.0
// Compares the complete event list of a step, for each kind of placement, with the text in
// golden_events/, so that a diff shows every change of the order. If a change is intended, a run
// with SPILLWAY_WRITE_GOLDEN_EVENTS=1 writes the lists anew.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "model/known_models.h"
#include "model/model_part.h"
#include "model/transformer_shape.h"
#include "plan/block_schedule.h"
#include "plan/weight_homes.h"

namespace spillway {
namespace {

// Writes all fields of an event, such as "run op, layer 0 qkv, batch 1".
std::string text_of(const LoweredModel& model, const StepEvent& event) {
  constexpr std::array kKinds = {"load", "wait", "run", "start", "join", "store", "release"};
  constexpr std::array kSubjects = {
      "op", "weights", "KV", "KV of the layer", "hidden states", "CPU", "partitions", "hand-over"};
  std::string text = fmt::format("{} {}", kKinds.at(static_cast<size_t>(event.kind)),
                                 kSubjects.at(static_cast<size_t>(event.subject)));
  const bool embeds = event.subject == EventSubject::kOp && event.layer == kEmbeddingList;
  if (embeds) text += ", embedding";
  if (event.layer >= 0)
    text += event.layer < model.layer_count() ? fmt::format(", layer {}", event.layer) : ", head";
  if (event.op >= 0)
    text +=
        fmt::format(" {}", (embeds ? model.embedding : model.layer(event.layer)).name(event.op));
  if (event.batch >= 0) text += fmt::format(", batch {}", event.batch);
  if (event.group >= 0) text += fmt::format(", group {}", event.group);
  return text + "\n";
}

// Makes a model of `count` layers, each with a gated MLP whose weights are divided into two
// segments.
Model layers_of(int count) {
  TransformerShape shape = try_known_model("tinyllama-1.1b").value();
  shape.layers = count;
  Model model{make_spec(shape), {}};
  for (const WeightSlot& slot : weight_slots(model.spec))
    model.weights.push_back({slot, slot.is_vector() ? DType::kF32 : DType::kF16, std::nullopt});
  return model;
}

// Makes a step with these weights and these micro-batches.
StepShape step_of(const WeightPlan& weights, const StreamSplit& split,
                  std::vector<BatchShape> batches, const Model& model = layers_of(2)) {
  const std::vector<Tier> homes = weight_homes(/*host_visible=*/false, model, weights);
  const std::vector<StreamingSchedule> schedules{streaming_schedule(model, homes, split)};
  StepShape shape{.model = model.spec.lowered,
                  .slot_groups = schedules.front().slot_groups(),
                  .weight_slots = slot_count(split.slots, schedules),
                  .batches = std::move(batches)};
  for (const StreamedLinear& linear : schedules.front().linears)
    shape.streamed.push_back(streamed_shape(linear));
  return shape;
}

StepShape without_overlap(StepShape shape) {
  shape.overlap = false;
  return shape;
}

// Makes a step with four layers, three of which share two buffers for their KV.
StepShape with_swapped_layers(std::vector<BatchShape> batches) {
  StepShape shape = step_of({}, {}, std::move(batches), layers_of(4));
  shape.swapped_layers = 3;
  shape.layer_buffers = 2;
  return shape;
}

struct PlacementKind {
  const char* name;
  StepShape shape;
};
void PrintTo(const PlacementKind& kind, std::ostream* to) { *to << kind.name; }

std::vector<PlacementKind> placement_kinds() {
  const StreamSplit segments{.slots = SlotContent::kSegments};
  const WeightPlan on_device, in_host_memory{.shares = {0, 1, 0}};
  const WeightPlan embeddings_in_host_memory{.embeddings = Tier::kHost};
  const WeightPlan nothing_on_device{.shares = {0, 1, 0}, .embeddings = Tier::kHost};
  StreamSplit half_on_cpu = segments;
  half_on_cpu.cpu.share = 0.5;
  const BatchShape resident{.logits = true};
  return {
      {"all_resident", step_of(on_device, {}, {resident})},
      {"all_resident_two_batches", step_of(on_device, {}, {resident, resident})},
      {"no_logits", step_of(on_device, {}, {{}})},
      {"weights_in_host_memory", step_of(in_host_memory, segments, {resident})},
      {"weights_in_host_memory_two_batches", step_of(in_host_memory, {}, {resident, resident})},
      {"weights_shared_with_cpu", step_of(in_host_memory, half_on_cpu, {resident})},
      {"weights_on_disk", step_of({.shares = {0.25, 0.25, 0.5}}, segments, {resident})},
      {"kv_attended_by_cpu",
       step_of(on_device, {}, {{.on_device = true, .on_host = true, .logits = true}})},
      {"kv_swapped_in_groups",
       step_of(on_device, {},
               {{.on_device = false, .swaps = {false, true}, .logits = true},
                {.on_device = true, .swaps = {false}, .logits = true}})},
      {"kv_in_partitions",
       step_of(on_device, {},
               {{.on_host = true, .swaps = {false, false}, .partitioned = true, .logits = true}})},
      {"layers_swapped", with_swapped_layers({resident})},
      {"layers_swapped_no_overlap", without_overlap(with_swapped_layers({resident}))},
      {"layers_swapped_two_batches",
       with_swapped_layers({resident, {.on_host = true, .logits = true}})},
      {"hidden_states_offloaded", step_of(on_device, {},
                                          {{.logits = true},
                                           {.hidden_states_offloaded = true, .logits = true},
                                           {.hidden_states_offloaded = true, .logits = true}})},
      {"no_overlap", without_overlap(step_of(
                         nothing_on_device, {},
                         {{.hidden_states_offloaded = true, .swaps = {false}, .logits = true},
                          {.hidden_states_offloaded = true, .on_host = true, .logits = true}}))},
      {"head_streamed", step_of(embeddings_in_host_memory, segments, {resident})},
      {"head_streamed_no_logits", step_of(embeddings_in_host_memory, segments, {{}})},
      {"everything_streamed_some_logits", step_of(nothing_on_device, {}, {{}, resident})},
      {"first_part", step_of(on_device, {}, {resident}, part_of(layers_of(2), 0, 1))},
      {"last_part", step_of(on_device, {}, {resident}, part_of(layers_of(2), 1, 2))},
      {"middle_part_two_batches",
       step_of(in_host_memory, {}, {resident, {.hidden_states_offloaded = true, .logits = true}},
               part_of(layers_of(3), 1, 2))},
  };
}

class GoldenEventsTest : public testing::TestWithParam<PlacementKind> {};

TEST_P(GoldenEventsTest, AreThoseOfTheSchedule) {
  const auto [name, shape] = GetParam();
  std::string events;
  for (const StepEvent& event : schedule_step(shape)) events += text_of(*shape.model, event);
  const auto path = std::filesystem::path(SPW_SOURCE_DIR) / "src/plan/golden_events" /
                    (std::string(name) + ".txt");
  if (std::getenv("SPILLWAY_WRITE_GOLDEN_EVENTS") != nullptr) std::ofstream(path) << events;
  std::ifstream file(path);
  ASSERT_TRUE(file.is_open()) << path;
  EXPECT_EQ(events, std::string(std::istreambuf_iterator<char>(file), {}));
}

INSTANTIATE_TEST_SUITE_P(PlacementKinds, GoldenEventsTest, testing::ValuesIn(placement_kinds()),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace spillway
