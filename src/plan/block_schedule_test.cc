// SPDX-License-Identifier: Apache-2.0
#include "plan/block_schedule.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "model/known_models.h"
#include "model/transformer_shape.h"
#include "tensor/layer_swap_sizes.h"

namespace spillway {
namespace {

using testing::ElementsAre;

// Makes a network of `count` layers, as devices run it. The ops of a layer are qkv, attention,
// attention_out, mlp_up and mlp_down.
std::shared_ptr<const LoweredModel> layers(int count, const char* of = "opt-125m") {
  TransformerShape shape = try_known_model(of).value();
  shape.layers = count;
  return make_spec(shape).lowered;
}
constexpr int kLinears[] = {0, 2, 3, 4}, kDown = 4, kHead = 1;

// Adds a weight segment for each linear op of these layers; the segments of a layer share a slot.
void stream_layers(StepShape& shape, const std::vector<int>& numbers) {
  int slot_group = 0;
  for (const int layer : numbers) {
    for (const int op : kLinears) {
      shape.streamed.push_back({.layer = layer, .op = op});
      shape.slot_groups.push_back(slot_group);
    }
    ++slot_group;
  }
}

// Writes an event as "load weights 1", "wait for KV 0.1.2" or "attention 0.1.2": layer, batch and
// group, if it has them.
std::vector<std::string> described(const StepShape& shape) {
  std::vector<std::string> all;
  for (const StepEvent& event : schedule_step(shape)) {
    std::string text = event_name(*shape.model, event);
    std::string where;
    for (const int number : {event.layer, event.batch, event.group}) {
      if (number >= 0) where += fmt::format("{}{}", where.empty() ? "" : ".", number);
    }
    all.push_back(where.empty() ? text : text + " " + where);
  }
  return all;
}

bool says(const std::string& event, const char* words) {
  return event.find(words) != std::string::npos;
}

TEST(BlockScheduleTest, AResidentStepOnlyComputes) {
  const StepShape shape{.model = layers(2), .batches = {{.logits = true}}};
  EXPECT_THAT(
      described(shape),
      ElementsAre("token_embedding 0", "store hidden states 0",                                   //
                  "wait for hidden states 0.0", "qkv 0.0", "attention 0.0", "attention_out 0.0",  //
                  "mlp_up 0.0", "mlp_down 0.0", "store hidden states 0.0",
                  "wait for hidden states 1.0", "qkv 1.0", "attention 1.0", "attention_out 1.0",  //
                  "mlp_up 1.0", "mlp_down 1.0", "store hidden states 1.0",
                  "wait for hidden states 2.0", "gather 2.0", "release hidden states 0", "head 2"));
}

TEST(BlockScheduleTest, ASlotIsFilledAgainWhenItsLastPieceIsLeft) {
  StepShape shape{.model = layers(4), .weight_slots = 2, .batches = {{}, {}}};
  stream_layers(shape, {0, 1, 3});
  const auto loads_after = [&] {
    std::vector<std::string> found, all = described(shape);
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].starts_with("load weights") && !all[i - 1].starts_with("load weights"))
        found.push_back(all[i - 1] + ", " + all[i]);
    }
    return found;
  };
  // The last two loads are for the next step.
  EXPECT_THAT(loads_after(), ElementsAre("release weights 0.1.3, load weights 3.8",
                                         "release weights 1.1.7, load weights 0.0",
                                         "release weights 3.1.11, load weights 1.4"));
  shape.overlap = false;
  EXPECT_THAT(loads_after().front(), "qkv 0.0, load weights 0.0");
  EXPECT_EQ(loads_after().size(), 12U);
}

// With one batch, segments are multiplied one by one; the CPU's rows are joined after the last one.
TEST(BlockScheduleTest, APieceIsMultipliedWhenItIsThere) {
  const StepShape shape{.model = layers(1),
                        .streamed = {{.layer = 0, .op = kDown, .segments = 2, .on_cpu = true}},
                        .slot_groups = {0, 1},
                        .batches = {{}}};
  EXPECT_THAT(
      described(shape),
      ElementsAre("token_embedding 0", "store hidden states 0", "wait for hidden states 0.0",
                  "qkv 0.0", "attention 0.0", "attention_out 0.0", "mlp_up 0.0",
                  "mlp_down on the CPU 0.0", "mlp_down 0.0",  //
                  "wait for weights 0.0.0", "mlp_down 0.0.0", "release weights 0.0.0",
                  "load weights 0.0", "wait for weights 0.0.1", "mlp_down 0.0.1",
                  "release weights 0.0.1", "load weights 0.1", "join mlp_down on the CPU 0.0",
                  "release hidden states 0.0"));
}

TEST(BlockScheduleTest, RowsOfTheNextMicroBatchComeWhileThisOneComputes) {
  const StepShape shape{.model = layers(1),
                        .batches = {{.hidden_states_offloaded = true, .logits = true},
                                    {.hidden_states_offloaded = true}}};
  EXPECT_THAT(
      described(shape),
      ElementsAre("token_embedding 0", "store hidden states 0", "token_embedding 1",
                  "store hidden states 1",  //
                  "load hidden states 0", "wait for hidden states 0.0", "load hidden states 1",
                  "qkv 0.0", "attention 0.0", "attention_out 0.0", "mlp_up 0.0", "mlp_down 0.0",
                  "store hidden states 0.0", "wait for hidden states 0.1", "load hidden states 0",
                  "qkv 0.1", "attention 0.1", "attention_out 0.1", "mlp_up 0.1", "mlp_down 0.1",
                  "release hidden states 0.1",  //
                  "wait for hidden states 1.0", "gather 1.0", "release hidden states 0", "head 1"));
}

// Softmax states are empty before the first partition, and complete after the last one.
TEST(BlockScheduleTest, PartsAreBetweenTheirBeginningAndTheirEnd) {
  StepShape shape{.model = layers(1)};
  shape.batches = {
      {.on_device = true, .on_host = true, .swaps = {false, false}, .partitioned = true}};
  EXPECT_THAT(
      described(shape),
      ElementsAre("load KV 0.0.0", "load KV 0.0.1", "token_embedding 0", "store hidden states 0",
                  "wait for hidden states 0.0", "qkv 0.0", "start partitions 0.0",
                  "attention on the CPU 0.0", "attention 0.0", "wait for KV 0.0.0",
                  "attention 0.0.0", "store KV 0.0.0", "wait for KV 0.0.1", "attention 0.0.1",
                  "store KV 0.0.1", "join attention on the CPU 0.0", "join partitions 0.0",
                  "attention_out 0.0", "mlp_up 0.0", "mlp_down 0.0", "release hidden states 0.0"));
}

TEST(BlockScheduleTest, PagesComeTwoGroupsAheadButNotBeforeWhatTheyReadIsBack) {
  StepShape shape{
      .model = layers(1),
      .batches = {{.on_device = false, .on_host = true, .swaps = {false, true, false}}}};
  EXPECT_THAT(described(shape),
              ElementsAre("load KV 0.0.0", "token_embedding 0", "store hidden states 0",
                          "wait for hidden states 0.0", "qkv 0.0", "attention on the CPU 0.0",
                          "wait for KV 0.0.0", "attention 0.0.0", "store KV 0.0.0", "load KV 0.0.1",
                          "load KV 0.0.2", "wait for KV 0.0.1", "attention 0.0.1", "store KV 0.0.1",
                          "wait for KV 0.0.2", "attention 0.0.2", "store KV 0.0.2",
                          "join attention on the CPU 0.0", "attention_out 0.0", "mlp_up 0.0",
                          "mlp_down 0.0", "release hidden states 0.0"));
  shape.overlap = false;
  EXPECT_THAT(
      described(shape),
      ElementsAre("token_embedding 0", "store hidden states 0", "wait for hidden states 0.0",
                  "qkv 0.0", "attention on the CPU 0.0", "load KV 0.0.0", "wait for KV 0.0.0",
                  "attention 0.0.0", "store KV 0.0.0", "load KV 0.0.1", "wait for KV 0.0.1",
                  "attention 0.0.1", "store KV 0.0.1", "load KV 0.0.2", "wait for KV 0.0.2",
                  "attention 0.0.2", "store KV 0.0.2", "join attention on the CPU 0.0",
                  "attention_out 0.0", "mlp_up 0.0", "mlp_down 0.0", "release hidden states 0.0"));
}

// Layers 0 and 2 of three share a buffer. Layer 2 is loaded into it when layer 0 has been used, and
// then layer 0 for the next step; blocks that are still missing there are loaded when that step
// begins.
TEST(BlockScheduleTest, ASwappedLayerIsThereFromItsProjectionsToItsAttention) {
  StepShape shape{
      .model = layers(3), .swapped_layers = 2, .layer_buffers = 1, .batches = {{.logits = true}}};
  EXPECT_THAT(
      described(shape),
      ElementsAre("load KV of the layer 0", "token_embedding 0", "store hidden states 0",  //
                  "wait for hidden states 0.0", "wait for KV of the layer 0.0", "qkv 0.0",
                  "attention 0.0", "store KV of the layer 0.0", "release KV of the layer 0.0",
                  "load KV of the layer 2.0", "attention_out 0.0", "mlp_up 0.0", "mlp_down 0.0",
                  "store hidden states 0.0",  //
                  "wait for hidden states 1.0", "qkv 1.0", "attention 1.0", "attention_out 1.0",
                  "mlp_up 1.0", "mlp_down 1.0", "store hidden states 1.0",
                  "wait for hidden states 2.0", "wait for KV of the layer 2.0", "qkv 2.0",
                  "attention 2.0", "store KV of the layer 2.0", "release KV of the layer 2.0",
                  "load KV of the layer 0.0", "attention_out 2.0", "mlp_up 2.0", "mlp_down 2.0",
                  "store hidden states 2.0",  //
                  "wait for hidden states 3.0", "gather 3.0", "release hidden states 0", "head 3"));
  shape.overlap = false;
  std::vector<std::string> of_layers = described(shape);
  std::erase_if(of_layers,
                [](const std::string& event) { return !says(event, "KV of the layer"); });
  EXPECT_THAT(of_layers, ElementsAre("load KV of the layer 0.0", "wait for KV of the layer 0.0",
                                     "store KV of the layer 0.0", "release KV of the layer 0.0",
                                     "load KV of the layer 2.0", "wait for KV of the layer 2.0",
                                     "store KV of the layer 2.0", "release KV of the layer 2.0"));
}

TEST(BlockScheduleTest, MicroBatchesShareASwappedLayersTrip) {
  StepShape shape{.model = layers(2),
                  .streamed = {{.layer = 0, .op = 0, .on_cpu = true}},
                  .slot_groups = {0},
                  .swapped_layers = 2,
                  .layer_buffers = 1,
                  .batches = {{.on_device = false, .on_host = true},
                              {.on_host = true, .partitioned = true},
                              {},
                              {.on_device = false, .on_host = true}}};
  const auto of_first_layer = [&] {
    std::vector<std::string> all = described(shape);
    std::erase_if(all, [](const std::string& event) {
      for (const char* other : {"hidden", "mlp", "embedding", "_out", " 1.", "weights"})
        if (says(event, other)) return true;
      return false;
    });
    return all;
  };
  EXPECT_THAT(
      of_first_layer(),
      ElementsAre(
          "load KV of the layer 0",  //
          "qkv on the CPU 0.0", "qkv 0.0", "qkv 0.0.0", "join qkv on the CPU 0.0",
          "attention on the CPU 0.0", "join attention on the CPU 0.0", "qkv on the CPU 0.1",
          "wait for KV of the layer 0.1", "qkv 0.1", "qkv 0.1.0", "join qkv on the CPU 0.1",
          "start partitions 0.1", "attention on the CPU 0.1", "attention 0.1",
          "join attention on the CPU 0.1", "join partitions 0.1", "qkv on the CPU 0.2", "qkv 0.2",
          "qkv 0.2.0", "join qkv on the CPU 0.2", "attention 0.2", "store KV of the layer 0.2",
          "release KV of the layer 0.2",  //
          "qkv on the CPU 0.3", "qkv 0.3", "qkv 0.3.0", "join qkv on the CPU 0.3",
          "attention on the CPU 0.3", "join attention on the CPU 0.3", "load KV of the layer 0.2"));
  for (BatchShape& batch : shape.batches) batch.on_device = false;
  EXPECT_THAT(described(shape), testing::Not(testing::Contains(testing::HasSubstr("KV"))))
      << "nothing in the step reads them";
}

// If heads are normed between projections and append, those are separate ops.
TEST(BlockScheduleTest, ALayerThatAppendsInItsAttentionWaitsThere) {
  TransformerShape normed = try_known_model("tinyllama-1.1b").value();
  normed.layers = 2;
  normed.head_norms = true;
  const StepShape shape{
      .model = make_spec(normed).lowered, .swapped_layers = 2, .layer_buffers = 1, .batches = {{}}};
  const std::vector<std::string> all = described(shape);
  const auto wait = std::ranges::find(all, "wait for KV of the layer 0.0");
  ASSERT_NE(wait, all.end());
  EXPECT_EQ(*(wait + 1), "attention 0.0");
}

TEST(GraphSegmentsTest, AGraphEndsBeforeWhatIsDecidedInTheStep) {
  const StepEvent op{.kind = EventKind::kRun, .subject = EventSubject::kOp, .layer = 0, .op = 0},
      load{.kind = EventKind::kLoad, .subject = EventSubject::kLayerKv, .layer = 1};
  const auto segments = [](std::vector<StepEvent> events) { return graph_segments(events); };
  EXPECT_THAT(segments({}), ElementsAre());
  EXPECT_THAT(segments({op, op}), ElementsAre(GraphSegment{0, 0, 2}));
  EXPECT_THAT(segments({load, op, op, load, load, op}),
              ElementsAre(GraphSegment{0, 1, 3}, GraphSegment{3, 5, 6}));
  EXPECT_THAT(segments({op, load}), ElementsAre(GraphSegment{0, 0, 1}, GraphSegment{1, 2, 2}));
}

TEST(GraphSegmentsTest, AStepIsCutAroundTheAttentionOfEachSwappedLayer) {
  const StepShape shape{
      .model = layers(12), .swapped_layers = 5, .layer_buffers = 2, .batches = {{}}};
  const std::vector<StepEvent> events = schedule_step(shape);
  const std::vector<GraphSegment> segments = graph_segments(events);
  EXPECT_EQ(segments.size(), 2U * 5 + 1);
  size_t end = 0;
  for (const GraphSegment& segment : segments) {
    EXPECT_EQ(std::exchange(end, segment.end), segment.begin);
    for (size_t i = segment.begin; i < segment.end; ++i)
      EXPECT_EQ(events[i].subject == EventSubject::kLayerKv, i < segment.ops);
  }
  EXPECT_EQ(end, events.size());
}

// In any step, everything is loaded once before its use, slots and buffers always suffice, and
// every layer of every micro-batch is computed in order.
TEST(BlockScheduleTest, RandomStepsKeepTheRules) {
  std::mt19937 random(3);
  const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int round = 0; round < 500; ++round) {
    StepShape shape{.model = layers(1 + pick(5)), .overlap = pick(3) > 0};
    const int batches = 1 + pick(3);
    // With several batches a slot holds a layer.
    const bool by_layers = batches > 1 || pick(1) > 0;
    shape.weight_slots = 1 + pick(3);
    int slot_group = -1, last_layer = -1, segments = 0;
    const auto stream = [&](int layer, int op) {
      shape.streamed.push_back(
          {.layer = layer, .op = op, .segments = 1 + pick(2), .on_cpu = pick(2) == 0});
      for (int i = 0; i < shape.streamed.back().segments; ++i) {
        if (!by_layers || layer != last_layer || layer == shape.layers()) ++slot_group;
        last_layer = layer;
        shape.slot_groups.push_back(slot_group);
        ++segments;
      }
    };
    for (int layer = 0; layer < shape.layers(); ++layer) {
      for (const int op : kLinears) {
        if (pick(2) > 0) stream(layer, op);
      }
    }
    if (pick(1) > 0) stream(shape.layers(), kHead);
    if (pick(1) > 0 && shape.layers() > 1) {
      shape.swapped_layers = 2 + pick(shape.layers() - 2);
      shape.layer_buffers = 1 + pick(shape.swapped_layers - 2);
    }
    const std::vector<int> swapped = choose_swapped_layers(shape.layers(), shape.swapped_layers);
    const auto is_swapped = [&](int layer) {
      return std::ranges::find(swapped, layer) != swapped.end();
    };
    for (int b = 0; b < batches; ++b) {
      BatchShape& batch = shape.batches.emplace_back();
      batch.on_device = pick(3) > 0;
      batch.hidden_states_offloaded = pick(1) > 0;
      batch.on_host = pick(2) == 0;
      batch.logits = pick(1) > 0;
      for (int group = pick(3); group > 0; --group) batch.swaps.push_back(pick(2) == 0);
    }
    // KV groups: 1: loading, 2: resident, 3: attended to, 4: stored.
    std::map<std::tuple<int, int, int>, int> kv;
    int kv_there = 0, loading_batch = -1, rows_taken = -1, cpu_busy = -1;
    // Slot groups that are in a slot or being loaded, and how often; the first ones were loaded
    // before the step.
    std::vector<int> in_slots(static_cast<size_t>(slot_group + 1));
    const auto slot_group_of = [&](int segment) {
      return shape.slot_groups[static_cast<size_t>(segment)];
    };
    const auto first_of = [&](int segment) {
      return segment == 0 || slot_group_of(segment - 1) != slot_group_of(segment);
    };
    const auto last_of = [&](int segment) {
      return segment + 1 == segments || slot_group_of(segment + 1) != slot_group_of(segment);
    };
    int slots_taken = 0, used = 0, left = 0, multiplied = 0;
    for (int i = 0; shape.overlap && i < shape.weight_slots && slot_group >= 0; ++i, ++slots_taken)
      ++in_slots[static_cast<size_t>(i % (slot_group + 1))];
    std::vector<int> layers_done(shape.batches.size(), 0);
    // Swapped layers: 1: loading, 2: resident, 3: stored. The first ones are loading already.
    std::map<int, int> layer_kv;
    int layers_there = 0;
    for (int i = 0; shape.overlap && i < shape.layer_buffers; ++i, ++layers_there)
      layer_kv[swapped[static_cast<size_t>(i)]] = 1;
    int heads = 0;
    for (const StepEvent& e : schedule_step(shape)) {
      const auto item = std::tuple(e.layer, e.batch, e.group);
      const bool of_attention = e.layer >= 0 && e.layer < shape.layers() && e.op == 1;
      switch (e.subject) {
        case EventSubject::kWeights:
          if (e.kind == EventKind::kWait) {
            EXPECT_EQ(e.group, used++);
            EXPECT_GT(in_slots[static_cast<size_t>(slot_group_of(e.group))], 0);
          } else if (e.kind == EventKind::kLoad && first_of(e.group)) {
            ++in_slots[static_cast<size_t>(slot_group_of(e.group))];
            EXPECT_LE(++slots_taken, shape.weight_slots);
          } else if (e.kind == EventKind::kRelease) {
            EXPECT_EQ(e.group, left++);
            if (!last_of(e.group)) break;
            --in_slots[static_cast<size_t>(slot_group_of(e.group))];
            --slots_taken;
          }
          break;
        case EventSubject::kCpu:
          if (e.kind == EventKind::kStart) {
            EXPECT_EQ(cpu_busy, -1);
            cpu_busy = e.op;
          } else {
            EXPECT_EQ(std::exchange(cpu_busy, -1), e.op);
          }
          break;
        case EventSubject::kKv:
          if (e.kind == EventKind::kLoad) {
            EXPECT_EQ(kv[item]++, 0);
            EXPECT_LE(++kv_there, shape.kv_buffers);
            const auto& swaps = shape.batches[static_cast<size_t>(e.batch)].swaps;
            if (swaps[static_cast<size_t>(e.group)] && e.group > 0) {
              EXPECT_EQ((kv[{e.layer, e.batch, e.group - 1}]), 4) << "what it reads is back";
            }
          } else if (e.kind == EventKind::kWait) {
            EXPECT_EQ(kv[item]++, 1);
          } else {
            EXPECT_EQ(kv[item]++, 3);
            --kv_there;
          }
          break;
        case EventSubject::kLayerKv: {
          int& state = layer_kv[e.layer];
          EXPECT_TRUE(is_swapped(e.layer));
          if (e.kind == EventKind::kLoad && e.batch < 0) {
            EXPECT_EQ(state, 1) << "at the beginning of a step: it is completed";
          } else if (e.kind == EventKind::kLoad) {
            EXPECT_EQ(std::exchange(state, 1), 0);
            EXPECT_LE(++layers_there, shape.layer_buffers);
          } else if (e.kind == EventKind::kWait) {
            EXPECT_EQ(std::exchange(state, 2), 1);
          } else if (e.kind == EventKind::kStore) {
            EXPECT_EQ(std::exchange(state, 3), 2);
          } else {
            EXPECT_EQ(std::exchange(state, 0), 3);
            --layers_there;
          }
          break;
        }
        case EventSubject::kHiddenStates:
          if (e.kind == EventKind::kLoad) {
            EXPECT_EQ(loading_batch, -1);
            loading_batch = e.batch;
          } else if (e.kind == EventKind::kWait) {
            if (shape.batches[static_cast<size_t>(e.batch)].hidden_states_offloaded) {
              EXPECT_EQ(loading_batch, e.batch);
              loading_batch = -1;
            }
            rows_taken = e.batch;
          }
          break;
        case EventSubject::kOp:
          if (e.layer == shape.layers() && e.op == kHead && e.group < 0) ++heads;
          if (e.layer >= 0 && e.layer < shape.layers() && e.op <= 1 && e.group < 0 &&
              shape.batches[static_cast<size_t>(e.batch)].on_device && is_swapped(e.layer)) {
            EXPECT_EQ(layer_kv[e.layer], 2) << "projections and attention find it";
          }
          if (of_attention && e.group >= 0) {
            EXPECT_EQ(kv[item]++, 2);
            break;
          }
          if (e.group >= 0) {
            EXPECT_LT(e.group, used);
            EXPECT_GE(e.group, left);
            ++multiplied;
          } else if (e.layer >= 0 && e.layer < shape.layers() && e.op == kDown) {
            EXPECT_EQ(e.batch, rows_taken);
            EXPECT_TRUE(cpu_busy == -1 || cpu_busy == kDown) << "the CPU's part of others is done";
            EXPECT_EQ(layers_done[static_cast<size_t>(e.batch)]++, e.layer);
          }
          break;
        default:
          break;
      }
    }
    for (const auto& [item, state] : kv) EXPECT_EQ(state, 4);
    EXPECT_EQ(layers_there, shape.overlap ? shape.layer_buffers : 0) << "for the next step";
    for (int i = 0; shape.overlap && i < shape.layer_buffers; ++i)
      EXPECT_EQ(layer_kv[swapped[static_cast<size_t>(i)]], 1);
    EXPECT_EQ(loading_batch, -1);
    EXPECT_THAT(layers_done, testing::Each(shape.layers()));
    EXPECT_EQ(used, segments) << "also where no logits are wanted";
    EXPECT_EQ(left, segments);
    const bool logits = std::ranges::any_of(shape.batches, &BatchShape::logits);
    EXPECT_EQ(heads, logits ? 1 : 0);
    const bool head = !shape.streamed.empty() && shape.streamed.back().layer == shape.layers();
    const int of_head = head ? shape.streamed.back().segments : 0;
    EXPECT_EQ(multiplied, (segments - of_head) * batches + (logits ? of_head : 0));
    if (HasFailure()) return;
  }
}

// If a layer reads the KV of another layer, its load comes after that layer's KV is stored in all
// batches.
TEST(BlockScheduleTest, KvThatAnotherLayerWritesComesBehindIt) {
  TransformerShape shape = try_known_model("llama-2-7b").value();
  shape.layers = 4;
  shape.shared_kv_layers = 2;
  for (const size_t batches : {1u, 3u}) {
    StepShape step{.model = make_spec(shape).lowered, .kv_buffers = 2, .overlap = true};
    step.batches.assign(batches, {.swaps = {false, false}, .logits = true});
    const std::vector<StepEvent> events = schedule_step(step);
    int stored = 0, loaded_ahead = 0;
    for (const StepEvent& event : events) {
      if (event.subject != EventSubject::kKv) continue;
      if (event.kind == EventKind::kStore && event.layer == 1) ++stored;
      if (event.kind != EventKind::kLoad) continue;
      if (event.layer >= 2) {
        EXPECT_EQ(stored, 2 * static_cast<int>(batches));
      }
      if (event.layer == 1 && stored == 0) ++loaded_ahead;
    }
    EXPECT_GE(loaded_ahead, 1) << "layers with KV of their own do not wait";
  }
}

}  // namespace
}  // namespace spillway
