// SPDX-License-Identifier: Apache-2.0
// Checks simulated steps that can be timed by hand.
#include "plan/simulate.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "model/known_models.h"
#include "model/model_part.h"
#include "model/transformer_shape.h"

namespace spillway {
namespace {

// Makes a network of `count` layers, as devices run it; its sizes do not matter.
std::shared_ptr<const LoweredModel> layers(int count) {
  TransformerShape shape = try_known_model("opt-125m").value();
  shape.layers = count;
  return make_spec(shape).lowered;
}
constexpr int kLastOp = 4;  // the last op of a layer

struct SimulateTest : testing::Test {
  // Each layer has one weight segment.
  StepShape shape{.model = layers(4),
                  .streamed = {{.layer = 0}, {.layer = 1}, {.layer = 2}, {.layer = 3}},
                  .slot_groups = {0, 1, 2, 3},
                  .batches = {{.logits = true}}};
  double layer_s = 1, weights_s = 3, disk_s = 0, host_s = 0, kv_s = 0, store_s = 0;
  double load_layer_s = 0, store_layer_s = 0;  // seconds for the KV of a swapped layer

  EventPrice price(const StepEvent& event) const {
    EventPrice price;
    const bool is_run = event.kind == EventKind::kRun, is_load = event.kind == EventKind::kLoad;
    const bool of_kv = event.subject == EventSubject::kKv;
    if (is_run && event.op == kLastOp) price[Worker::kDevice] = layer_s;
    if (is_load && event.subject == EventSubject::kWeights) {
      price[Worker::kToDevice] = weights_s;
      price[Worker::kDiskRead] = disk_s;
    }
    if (event.kind == EventKind::kStart) price[Worker::kCpu] = host_s;
    if (is_load && of_kv) price[Worker::kToDevice] = kv_s;
    if (event.kind == EventKind::kStore && of_kv) price[Worker::kToHost] = store_s;
    if (event.subject == EventSubject::kLayerKv) {
      if (is_load && event.batch >= 0) price[Worker::kToDevice] = load_layer_s;
      if (event.kind == EventKind::kStore) price[Worker::kToHost] = store_layer_s;
    }
    return price;
  }
  // Returns the time of the third of several steps: from then on all are equal.
  double step() const {
    const SimulatedSteps done =
        simulate_steps(shape, 4, [this](const StepEvent& event) { return price(event); });
    return done.seconds[2];
  }
};

// Hidden states are passed on after they are computed, and the next step waits for that.
TEST_F(SimulateTest, HandOversHoldTheDeviceUp) {
  const Model whole = describe_dummy_model("opt-125m");
  const auto step_of = [&](int first, int end) {
    const StepShape part{.model = part_of(whole, first, end).spec.lowered, .batches = {{}, {}}};
    const auto one_each = [&](const StepEvent& event) {
      EventPrice each;
      if (event.kind == EventKind::kRun && event.op == kLastOp) each[Worker::kDevice] = 1;
      if (event.subject != EventSubject::kHandOver) return each;
      each[event.kind == EventKind::kLoad ? Worker::kToDevice : Worker::kToHost] = 0.25;
      return each;
    };
    return simulate_steps(part, 3, one_each).seconds[1];
  };
  EXPECT_DOUBLE_EQ(step_of(0, 12), 24);
  EXPECT_DOUBLE_EQ(step_of(0, 4), 8 + 2 * 0.25);
  EXPECT_DOUBLE_EQ(step_of(4, 6), 4 + 4 * 0.25);
  EXPECT_DOUBLE_EQ(step_of(6, 12), 12 + 2 * 0.25);
}

TEST_F(SimulateTest, WhatIsSlowerDecides) {
  EXPECT_DOUBLE_EQ(step(), 4 * 3) << "the bus";
  weights_s = 0.5;
  EXPECT_DOUBLE_EQ(step(), 4 * 1) << "the device";
  disk_s = 5;
  EXPECT_DOUBLE_EQ(step(), 4 * 5) << "the disk, behind which the bus hides";
}

// One of eight layers is on disk: it is read while the others are copied from host memory.
TEST_F(SimulateTest, TheDiskReadsAheadAsFarAsThereIsStagingMemory) {
  shape.model = layers(8);
  shape.streamed.clear();
  shape.slot_groups.clear();
  for (int layer = 0; layer < 8; ++layer) {
    shape.streamed.push_back({.layer = layer});
    shape.slot_groups.push_back(layer);
  }
  const auto step_with = [&](int ahead) {
    shape.segments_read_ahead = ahead;
    const auto done = simulate_steps(shape, 4, [](const StepEvent& event) {
      EventPrice price;
      if (event.kind == EventKind::kRun && event.op == kLastOp) price[Worker::kDevice] = 0.5;
      if (event.kind == EventKind::kLoad && event.subject == EventSubject::kWeights) {
        price[Worker::kToDevice] = 1;
        if (event.group == 3) price[Worker::kDiskRead] = 10;
      }
      return price;
    });
    return done.seconds[2];
  };
  EXPECT_GT(step_with(0), 13);
  EXPECT_DOUBLE_EQ(step_with(1), 10) << "the disk is never idle";
}

TEST_F(SimulateTest, WithoutOverlapTimesAddUp) {
  shape.overlap = false;
  EXPECT_DOUBLE_EQ(step(), 4 * (1 + 3));
  shape.batches = {{.swaps = {false, false}}, {.on_host = true}};
  kv_s = 0.5;
  store_s = 0.25;
  host_s = 2;
  EXPECT_DOUBLE_EQ(step(), 4 * (3 + 2 * (0.5 + 0.25) + 1 + 2 + 1)) << "whatever they wait for";
}

TEST_F(SimulateTest, MicroBatchesShareAWeightsTrip) {
  shape.batches = {{}, {}, {}};
  EXPECT_DOUBLE_EQ(step(), 4 * 3) << "three computations hide it";
  weights_s = 0;
  EXPECT_DOUBLE_EQ(step(), 4 * 3);
}

TEST_F(SimulateTest, TheCpuAttendsBesideTheBus) {
  shape.batches = {{.on_host = true}};
  host_s = 2;
  EXPECT_DOUBLE_EQ(step(), 4 * 3);
  host_s = 4;
  EXPECT_DOUBLE_EQ(step(), 4 * (4 + 1)) << "then the device waits for it";
}

TEST_F(SimulateTest, PagesAndWeightsShareTheBus) {
  shape.batches = {{.swaps = {false, false}}};
  kv_s = 0.5;
  EXPECT_DOUBLE_EQ(step(), 4 * (3 + 2 * 0.5));
}

// Layers 1 and 3 of four share a buffer: two layers are computed between the attention of one and
// the projections of the other.
TEST_F(SimulateTest, ASwappedLayerHasTheTimeFromTheAttentionBefore) {
  weights_s = 0;
  shape.swapped_layers = 2;
  shape.layer_buffers = 1;
  load_layer_s = 1.5;
  EXPECT_DOUBLE_EQ(step(), 4) << "hidden";
  load_layer_s = 3;
  EXPECT_DOUBLE_EQ(step(), 2 * 3) << "the device waits for each of them";
  store_layer_s = 5;
  EXPECT_DOUBLE_EQ(step(), 2 * (5 + 3)) << "what was written is overwritten when it is stored";
  store_layer_s = 2;
  EXPECT_DOUBLE_EQ(step(), 2 * (2 + 2));
  load_layer_s = 5;
  EXPECT_DOUBLE_EQ(step(), 2 * 5) << "the other blocks come meanwhile";
}

TEST_F(SimulateTest, WithTwoBuffersTheLinkIsNeverIdle) {
  weights_s = 0;
  shape.model = layers(6);
  shape.swapped_layers = 3;
  shape.layer_buffers = 2;
  load_layer_s = 1.9;
  EXPECT_DOUBLE_EQ(step(), 6);
  load_layer_s = 2.5;
  EXPECT_DOUBLE_EQ(step(), 3 * 2.5);
}

TEST_F(SimulateTest, WithoutOverlapASwappedLayerIsLoadedAtItsWait) {
  shape.overlap = false;
  weights_s = 0;
  shape.swapped_layers = 2;
  shape.layer_buffers = 1;
  load_layer_s = 3;
  store_layer_s = 0.5;
  EXPECT_DOUBLE_EQ(step(), 4 + 2 * 3);
  store_layer_s = 2.5;
  EXPECT_DOUBLE_EQ(step(), 4 + 2 * (3 + 0.5)) << "which waits for the store before";
}

TEST_F(SimulateTest, AStepIsNeverShorterThanItsBusiestWorker) {
  for (const double bus : {0.1, 0.7, 1.3, 2.9}) {
    weights_s = bus;
    const SimulatedSteps done =
        simulate_steps(shape, 10, [this](const StepEvent& event) { return price(event); });
    const double all = std::accumulate(done.seconds.begin(), done.seconds.end(), 0.0);
    EXPECT_LE(done.busy[static_cast<size_t>(Worker::kDevice)], all * (1 + 1e-12));
    // The first step's loads were finished before it, and some loads are for the step after the
    // last.
    EXPECT_LE(done.busy[static_cast<size_t>(Worker::kToDevice)], all + 2 * bus + 1e-9);
    for (const SimulatedEvent& event : done.events) {
      for (int w = 0; w < kWorkerCount; ++w)
        EXPECT_LE(event.begin[static_cast<size_t>(w)], event.end[static_cast<size_t>(w)]);
    }
  }
}

}  // namespace
}  // namespace spillway
