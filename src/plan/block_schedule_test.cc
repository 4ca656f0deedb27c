// SPDX-License-Identifier: Apache-2.0
#include "plan/block_schedule.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>

namespace spillway {
namespace {

using testing::ElementsAre;

const char* name_of(StepAction action) {
  constexpr std::array kNames = {"load weights", "use weights",  "leave weights", "multiply",
                                 "join linear",  "embed",        "load rows",     "take rows",
                                 "store rows",   "drop rows",    "load KV",       "project",
                                 "begin parts",  "start on CPU", "attend",        "attend swapped",
                                 "store KV",     "join CPU",     "end parts",     "out",
                                 "up",           "down",         "finish layer",  "gather",
                                 "head"};
  return kNames[static_cast<size_t>(action)];
}

constexpr LinearGroup kLayerGroups[] = {LinearGroup::kProject, LinearGroup::kAttentionOut,
                                        LinearGroup::kUp, LinearGroup::kDown};

// A piece of each linear op of these layers, all of a layer in a slot.
void stream_layers(StepShape& shape, const std::vector<int>& layers) {
  int slotful = 0;
  for (const int layer : layers) {
    for (const LinearGroup group : kLayerGroups) {
      shape.streamed.push_back({.layer = layer, .group = group});
      shape.slotfuls.push_back(slotful);
    }
    ++slotful;
  }
}

// "load weights 1", "attend swapped 0.1.2": layer, batch and group, as far as it has them.
std::vector<std::string> described(const StepShape& shape) {
  std::vector<std::string> all;
  for (const StepEvent& event : schedule_step(shape)) {
    std::string text = name_of(event.action);
    std::string where;
    for (const int number : {event.layer, event.batch, event.group}) {
      if (number >= 0) where += fmt::format("{}{}", where.empty() ? "" : ".", number);
    }
    all.push_back(where.empty() ? text : text + " " + where);
  }
  return all;
}

TEST(BlockScheduleTest, AResidentStepOnlyComputes) {
  const StepShape shape{.layers = 2, .batches = {{.logits = true}}};
  EXPECT_THAT(described(shape),
              ElementsAre("embed 0", "store rows 0",                                //
                          "take rows 0.0", "project 0.0", "attend 0.0", "out 0.0",  //
                          "up 0.0", "down 0.0", "finish layer 0.0", "store rows 0.0",
                          "take rows 1.0", "project 1.0", "attend 1.0", "out 1.0",  //
                          "up 1.0", "down 1.0", "finish layer 1.0", "store rows 1.0",
                          "take rows 2.0", "gather 0", "drop rows 0", "head 2"));
}

TEST(BlockScheduleTest, ASlotIsFilledAgainWhenItsLastPieceIsLeft) {
  StepShape shape{.layers = 4, .weight_slots = 2, .batches = {{}, {}}};
  stream_layers(shape, {0, 1, 3});
  const auto loads_after = [&] {
    std::vector<std::string> found, all = described(shape);
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].starts_with("load weights") && !all[i - 1].starts_with("load weights"))
        found.push_back(all[i - 1] + ", " + all[i]);
    }
    return found;
  };
  // Those of the next step, too.
  EXPECT_THAT(loads_after(), ElementsAre("leave weights 0.1.3, load weights 3.8",
                                         "leave weights 1.1.7, load weights 0.0",
                                         "leave weights 3.1.11, load weights 1.4"));
  shape.overlap = false;
  EXPECT_THAT(loads_after().front(), "project 0.0, load weights 0.0");
  EXPECT_EQ(loads_after().size(), 12U);
}

// Of one batch, piece by piece; the CPU's rows are joined behind the last one.
TEST(BlockScheduleTest, APieceIsMultipliedWhenItIsThere) {
  const StepShape shape{
      .layers = 1,
      .streamed = {{.layer = 0, .group = LinearGroup::kDown, .pieces = 2, .on_cpu = true}},
      .slotfuls = {0, 1},
      .batches = {{}}};
  EXPECT_THAT(
      described(shape),
      ElementsAre("embed 0", "store rows 0", "take rows 0.0", "project 0.0", "attend 0.0",
                  "out 0.0", "up 0.0", "down 0.0",  //
                  "use weights 0.0.0", "multiply 0.0.0", "leave weights 0.0.0", "load weights 0.0",
                  "use weights 0.0.1", "multiply 0.0.1", "leave weights 0.0.1", "load weights 0.1",
                  "join linear 0.0", "finish layer 0.0", "drop rows 0.0"));
}

TEST(BlockScheduleTest, RowsOfTheNextMicroBatchComeWhileThisOneComputes) {
  const StepShape shape{.layers = 1,
                        .batches = {{.rows_away = true, .logits = true}, {.rows_away = true}}};
  EXPECT_THAT(described(shape),
              ElementsAre("embed 0", "store rows 0", "embed 1", "store rows 1",  //
                          "load rows 0", "take rows 0.0", "load rows 1", "project 0.0",
                          "attend 0.0", "out 0.0", "up 0.0", "down 0.0", "finish layer 0.0",
                          "store rows 0.0", "take rows 0.1", "load rows 0", "project 0.1",
                          "attend 0.1", "out 0.1", "up 0.1", "down 0.1", "finish layer 0.1",
                          "drop rows 0.1",  //
                          "take rows 1.0", "gather 0", "drop rows 0", "head 1"));
}

// Nothing has been seen before the first part, and all of it behind the last.
TEST(BlockScheduleTest, PartsAreBetweenTheirBeginningAndTheirEnd) {
  StepShape shape{.layers = 1};
  shape.batches = {{.on_device = true, .on_host = true, .swaps = {false, false}, .parts = true}};
  EXPECT_THAT(described(shape),
              ElementsAre("load KV 0.0.0", "load KV 0.0.1", "embed 0", "store rows 0",
                          "take rows 0.0", "project 0.0", "begin parts 0.0", "start on CPU 0.0",
                          "attend 0.0", "attend swapped 0.0.0", "store KV 0.0.0",
                          "attend swapped 0.0.1", "store KV 0.0.1", "join CPU 0.0", "end parts 0.0",
                          "out 0.0", "up 0.0", "down 0.0", "finish layer 0.0", "drop rows 0.0"));
}

TEST(BlockScheduleTest, PagesComeTwoGroupsAheadButNotBeforeWhatTheyReadIsBack) {
  StepShape shape{
      .layers = 1,
      .batches = {{.on_device = false, .on_host = true, .swaps = {false, true, false}}}};
  EXPECT_THAT(
      described(shape),
      ElementsAre("load KV 0.0.0", "embed 0", "store rows 0", "take rows 0.0", "project 0.0",
                  "start on CPU 0.0", "attend swapped 0.0.0", "store KV 0.0.0", "load KV 0.0.1",
                  "load KV 0.0.2", "attend swapped 0.0.1", "store KV 0.0.1", "attend swapped 0.0.2",
                  "store KV 0.0.2", "join CPU 0.0", "out 0.0", "up 0.0", "down 0.0",
                  "finish layer 0.0", "drop rows 0.0"));
  shape.overlap = false;
  EXPECT_THAT(
      described(shape),
      ElementsAre("embed 0", "store rows 0", "take rows 0.0", "project 0.0", "start on CPU 0.0",
                  "load KV 0.0.0", "attend swapped 0.0.0", "store KV 0.0.0", "load KV 0.0.1",
                  "attend swapped 0.0.1", "store KV 0.0.1", "load KV 0.0.2", "attend swapped 0.0.2",
                  "store KV 0.0.2", "join CPU 0.0", "out 0.0", "up 0.0", "down 0.0",
                  "finish layer 0.0", "drop rows 0.0"));
}

// Whatever the step: everything is loaded once before its use, slots and buffers are never too few,
// and every layer of every micro-batch is computed in order.
TEST(BlockScheduleTest, RandomStepsKeepTheRules) {
  std::mt19937 random(3);
  const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int round = 0; round < 500; ++round) {
    StepShape shape{.layers = 1 + pick(5), .overlap = pick(3) > 0};
    const int batches = 1 + pick(3);
    // With several batches a layer comes into one slot.
    const bool by_layers = batches > 1 || pick(1) > 0;
    shape.weight_slots = 1 + pick(3);
    int slotful = -1, last_layer = -1, pieces = 0;
    const auto stream = [&](int layer, LinearGroup group) {
      shape.streamed.push_back({.layer = layer, .group = group, .pieces = 1 + pick(2)});
      for (int i = 0; i < shape.streamed.back().pieces; ++i) {
        if (!by_layers || layer != last_layer || layer == shape.layers) ++slotful;
        last_layer = layer;
        shape.slotfuls.push_back(slotful);
        ++pieces;
      }
    };
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (const LinearGroup group : kLayerGroups) {
        if (pick(2) > 0) stream(layer, group);
      }
    }
    if (pick(1) > 0) stream(shape.layers, LinearGroup::kHead);
    for (int b = 0; b < batches; ++b) {
      BatchShape& batch = shape.batches.emplace_back();
      batch.rows_away = pick(1) > 0;
      batch.on_host = pick(2) == 0;
      batch.logits = pick(1) > 0;
      for (int group = pick(3); group > 0; --group) batch.swaps.push_back(pick(2) == 0);
    }
    std::map<std::tuple<int, int, int>, int> kv;  // 1: it has come, 2: it is attended to, 3: stored
    int kv_there = 0, rows_coming = -1, rows_taken = -1, host_busy = -1;
    // Slotfuls that are in a slot, or on their way there, and how often; the first ones came
    // before.
    std::vector<int> in_slots(static_cast<size_t>(slotful + 1));
    const auto slotful_of = [&](int piece) { return shape.slotfuls[static_cast<size_t>(piece)]; };
    const auto first_of = [&](int piece) {
      return piece == 0 || slotful_of(piece - 1) != slotful_of(piece);
    };
    const auto last_of = [&](int piece) {
      return piece + 1 == pieces || slotful_of(piece + 1) != slotful_of(piece);
    };
    int slots_taken = 0, used = 0, left = 0, multiplied = 0;
    for (int i = 0; shape.overlap && i < shape.weight_slots && slotful >= 0; ++i, ++slots_taken)
      ++in_slots[static_cast<size_t>(i % (slotful + 1))];
    std::vector<int> layers_done(shape.batches.size(), 0);
    int heads = 0;
    for (const StepEvent& e : schedule_step(shape)) {
      const auto item = std::tuple(e.layer, e.batch, e.group);
      switch (e.action) {
        case StepAction::kUseWeights:
          EXPECT_EQ(e.group, used++);
          EXPECT_GT(in_slots[static_cast<size_t>(slotful_of(e.group))], 0);
          break;
        case StepAction::kMultiply:
          EXPECT_LT(e.group, used);
          EXPECT_GE(e.group, left);
          ++multiplied;
          break;
        case StepAction::kLoadWeights:
          if (!first_of(e.group)) break;
          ++in_slots[static_cast<size_t>(slotful_of(e.group))];
          EXPECT_LE(++slots_taken, shape.weight_slots);
          break;
        case StepAction::kLeaveWeights:
          EXPECT_EQ(e.group, left++);
          if (!last_of(e.group)) break;
          --in_slots[static_cast<size_t>(slotful_of(e.group))];
          --slots_taken;
          break;
        case StepAction::kStartOnHost:
          EXPECT_EQ(host_busy, -1);
          host_busy = e.batch;
          break;
        case StepAction::kJoinHost:
          EXPECT_EQ(std::exchange(host_busy, -1), e.batch);
          break;
        case StepAction::kLoadKv:
          EXPECT_EQ(kv[item]++, 0);
          EXPECT_LE(++kv_there, shape.kv_buffers);
          if (shape.batches[static_cast<size_t>(e.batch)].swaps[static_cast<size_t>(e.group)] &&
              e.group > 0) {
            EXPECT_EQ((kv[{e.layer, e.batch, e.group - 1}]), 3) << "what it reads is back";
          }
          break;
        case StepAction::kAttendSwapped:
          EXPECT_EQ(kv[item]++, 1);
          break;
        case StepAction::kStoreKv:
          EXPECT_EQ(kv[item]++, 2);
          --kv_there;
          break;
        case StepAction::kLoadRows:
          EXPECT_EQ(rows_coming, -1);
          rows_coming = e.batch;
          break;
        case StepAction::kTakeRows:
          if (shape.batches[static_cast<size_t>(e.batch)].rows_away) {
            EXPECT_EQ(rows_coming, e.batch);
            rows_coming = -1;
          }
          rows_taken = e.batch;
          break;
        case StepAction::kFinishLayer:
          EXPECT_EQ(e.batch, rows_taken);
          EXPECT_EQ(host_busy, -1) << "the CPU's rows are part of it";
          EXPECT_EQ(layers_done[static_cast<size_t>(e.batch)]++, e.layer);
          break;
        case StepAction::kHead:
          EXPECT_EQ(e.layer, shape.layers);
          ++heads;
          break;
        default:
          break;
      }
    }
    for (const auto& [item, state] : kv) EXPECT_EQ(state, 3);
    EXPECT_EQ(rows_coming, -1);
    EXPECT_THAT(layers_done, testing::Each(shape.layers));
    EXPECT_EQ(used, pieces) << "also where no logits are wanted";
    EXPECT_EQ(left, pieces);
    const bool logits = std::ranges::any_of(shape.batches, &BatchShape::logits);
    EXPECT_EQ(heads, logits ? 1 : 0);
    const bool head = !shape.streamed.empty() && shape.streamed.back().layer == shape.layers;
    const int of_head = head ? shape.streamed.back().pieces : 0;
    EXPECT_EQ(multiplied, (pieces - of_head) * batches + (logits ? of_head : 0));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace spillway
