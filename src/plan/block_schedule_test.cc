// SPDX-License-Identifier: Apache-2.0
#include "plan/block_schedule.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace spillway {
namespace {

using testing::ElementsAre;

const char* name_of(StepAction action) {
  constexpr std::array kNames = {
      "load weights",   "use weights", "leave weights", "embed",        "load rows",    "take rows",
      "store rows",     "drop rows",   "load KV",       "project",      "start on CPU", "attend",
      "attend swapped", "store KV",    "join CPU",      "finish layer", "gather",       "head"};
  return kNames[static_cast<size_t>(action)];
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
              ElementsAre("embed 0", "store rows 0",                                      //
                          "use weights 0", "take rows 0.0", "project 0.0", "attend 0.0",  //
                          "finish layer 0.0", "store rows 0.0", "leave weights 0",        //
                          "use weights 1", "take rows 1.0", "project 1.0", "attend 1.0",  //
                          "finish layer 1.0", "store rows 1.0", "leave weights 1",        //
                          "take rows 2.0", "gather 0", "drop rows 0", "head"));
}

TEST(BlockScheduleTest, WeightsComeIntoTheSlotThatWasLeft) {
  StepShape shape{.layers = 4, .streamed = {0, 1, 3}, .weight_slots = 2, .batches = {{}, {}}};
  const auto loads_after = [&] {
    std::vector<std::string> found, all = described(shape);
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].starts_with("load weights")) found.push_back(all[i - 1] + ", " + all[i]);
    }
    return found;
  };
  // Those of the next step, too.
  EXPECT_THAT(loads_after(),
              ElementsAre("leave weights 0, load weights 3", "leave weights 1, load weights 0",
                          "leave weights 3, load weights 1"));
  shape.overlap = false;
  EXPECT_THAT(loads_after(),
              ElementsAre("store rows 1, load weights 0", "leave weights 0, load weights 1",
                          "leave weights 2, load weights 3"));
}

TEST(BlockScheduleTest, RowsOfTheNextMicroBatchComeWhileThisOneComputes) {
  const StepShape shape{.layers = 1,
                        .batches = {{.rows_away = true, .logits = true}, {.rows_away = true}}};
  EXPECT_THAT(described(shape),
              ElementsAre("embed 0", "store rows 0", "embed 1", "store rows 1",  //
                          "use weights 0", "load rows 0", "take rows 0.0", "load rows 1",
                          "project 0.0", "attend 0.0", "finish layer 0.0", "store rows 0.0",
                          "take rows 0.1", "load rows 0", "project 0.1", "attend 0.1",
                          "finish layer 0.1", "drop rows 0.1", "leave weights 0",  //
                          "take rows 1.0", "gather 0", "drop rows 0", "head"));
}

TEST(BlockScheduleTest, PagesComeTwoGroupsAheadButNotBeforeWhatTheyReadIsBack) {
  StepShape shape{
      .layers = 1,
      .batches = {{.on_device = false, .on_host = true, .swaps = {false, true, false}}}};
  EXPECT_THAT(
      described(shape),
      ElementsAre("load KV 0.0.0", "embed 0", "store rows 0", "use weights 0", "take rows 0.0",
                  "project 0.0", "start on CPU 0.0", "attend swapped 0.0.0", "store KV 0.0.0",
                  "load KV 0.0.1", "load KV 0.0.2", "attend swapped 0.0.1", "store KV 0.0.1",
                  "attend swapped 0.0.2", "store KV 0.0.2", "join CPU 0.0", "finish layer 0.0",
                  "drop rows 0.0", "leave weights 0"));
  shape.overlap = false;
  EXPECT_THAT(
      described(shape),
      ElementsAre("embed 0", "store rows 0", "use weights 0", "take rows 0.0", "project 0.0",
                  "start on CPU 0.0", "load KV 0.0.0", "attend swapped 0.0.0", "store KV 0.0.0",
                  "load KV 0.0.1", "attend swapped 0.0.1", "store KV 0.0.1", "load KV 0.0.2",
                  "attend swapped 0.0.2", "store KV 0.0.2", "join CPU 0.0", "finish layer 0.0",
                  "drop rows 0.0", "leave weights 0"));
}

// Whatever the step: everything is loaded once before its use, slots and buffers are never too few,
// and every layer of every micro-batch is computed in order.
TEST(BlockScheduleTest, RandomStepsKeepTheRules) {
  std::mt19937 random(3);
  const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int round = 0; round < 500; ++round) {
    StepShape shape{.layers = 1 + pick(5), .overlap = pick(3) > 0};
    for (int layer = 0; layer < shape.layers; ++layer) {
      if (pick(2) > 0) shape.streamed.push_back(layer);
    }
    const int pieces = std::max(0, pick(5) - 2);  // of a head that streams
    for (int i = 0; i < pieces; ++i) shape.streamed.push_back(shape.layers + i);
    const int batches = 1 + pick(3);
    for (int b = 0; b < batches; ++b) {
      BatchShape& batch = shape.batches.emplace_back();
      batch.rows_away = pick(1) > 0;
      batch.on_host = pick(2) == 0;
      batch.logits = pick(1) > 0;
      for (int group = pick(3); group > 0; --group) batch.swaps.push_back(pick(2) == 0);
    }
    std::map<std::tuple<int, int, int>, int> kv;  // 1: it has come, 2: it is attended to, 3: stored
    int kv_there = 0, rows_coming = -1, rows_taken = -1, using_layer = -1, host_busy = -1;
    // Streamed layers whose weights are in a slot, or on their way there; the first ones came
    // before.
    std::set<int> slots;
    const auto slot_count = std::min(shape.streamed.size(), size_t{2});
    if (shape.overlap) slots.insert(shape.streamed.begin(), shape.streamed.begin() + slot_count);
    const auto is_streamed = [&](int layer) {
      return std::ranges::count(shape.streamed, layer) > 0;
    };
    std::vector<int> layers_done(shape.batches.size(), 0);
    int heads = 0;
    for (const StepEvent& e : schedule_step(shape)) {
      const auto item = std::tuple(e.layer, e.batch, e.group);
      switch (e.action) {
        case StepAction::kUseWeights:
          EXPECT_EQ(e.layer, using_layer + 1);
          using_layer = e.layer;
          EXPECT_EQ(slots.contains(e.layer), is_streamed(e.layer));
          break;
        case StepAction::kLoadWeights:
          // With one streamed layer and two slots the next step's weights are there already.
          if (shape.streamed.size() > 1) {
            EXPECT_TRUE(slots.insert(e.layer).second);
          }
          EXPECT_LE(slots.size(), slot_count);
          slots.insert(e.layer);
          break;
        case StepAction::kLeaveWeights:
          if (shape.streamed.size() > 1 || !shape.overlap) slots.erase(e.layer);
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
          EXPECT_EQ(e.layer, using_layer);
          EXPECT_EQ(e.batch, rows_taken);
          EXPECT_EQ(host_busy, -1) << "the CPU's rows are part of it";
          EXPECT_EQ(layers_done[static_cast<size_t>(e.batch)]++, e.layer);
          break;
        case StepAction::kHead:
          EXPECT_EQ(e.layer, pieces > 0 ? shape.layers + heads : -1);
          EXPECT_TRUE(pieces == 0 || e.layer == using_layer);
          ++heads;
          break;
        default:
          break;
      }
    }
    for (const auto& [item, state] : kv) EXPECT_EQ(state, 3);
    EXPECT_EQ(rows_coming, -1);
    EXPECT_THAT(layers_done, testing::Each(shape.layers));
    EXPECT_EQ(using_layer + 1, shape.layers + pieces) << "also where no logits are wanted";
    const bool logits = std::ranges::any_of(shape.batches, &BatchShape::logits);
    EXPECT_EQ(heads, logits ? std::max(1, pieces) : 0);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace spillway
