// SPDX-License-Identifier: Apache-2.0
// Tests the paper's queue, and that our layer swapping needs fewer copies (Pie, 3.3 and figure 4).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kv/layer_table.h"
#include "kv/test_pie_queue.h"

namespace spillway {
namespace {

// There are nine layers, a swap takes as long as two of them compute, and layers 8 and 9 are in
// host memory.
TEST(PieQueueTest, DoesWhatFigure4Says) {
  PieQueue queue(9, 2, 2);
  struct Expected {
    int out, in;
  };
  // "a swap-out does not occur during the computation of layer 1"; layer 1 goes out during 2
  // and 3; at layer 4, layer 3 goes out and 8 comes to the place of 1; and so on, a pair every
  // other layer.
  constexpr Expected kFirstStep[] = {{0, 0}, {1, 0}, {0, 0}, {3, 8}, {0, 0},
                                     {5, 9}, {0, 0}, {7, 1}, {0, 0}};
  for (int layer = 1; layer <= 9; ++layer) {
    const PieQueue::Decision decision = queue.begin_layer();
    EXPECT_EQ(decision.out, kFirstStep[layer - 1].out) << "at layer " << layer;
    EXPECT_EQ(decision.in, kFirstStep[layer - 1].in) << "at layer " << layer;
    EXPECT_EQ(decision.waits, 0);
  }
  EXPECT_EQ(queue.in_host(), (std::vector{3, 5, 7}));
  // From now on it is a queue: the layer that went out first comes in first, and no
  // layer ever waits.
  std::vector<int> outs = {3, 5, 7}, ins;
  for (int layer = 10; layer <= 9 * 20; ++layer) {
    const PieQueue::Decision decision = queue.begin_layer();
    EXPECT_EQ(decision.waits, 0) << "at layer " << layer;
    if (decision.out != 0) outs.push_back(decision.out);
    if (decision.in != 0) ins.push_back(decision.in);
  }
  ASSERT_LT(ins.size(), outs.size());
  EXPECT_TRUE(std::equal(ins.begin(), ins.end(), outs.begin()));
}

// Runs figure 4's queue with a number of early layers: `first_waits` is the waiting for the first
// layers of steps, `waits` that for all layers.
struct QueueRun {
  int first_waits = 0, waits = 0;
  double violations = 0;  // share of all layers that came in
};
QueueRun run_queue(int layers, int in_host, int swap_time, int early_layers, int steps = 20) {
  PieQueue queue(layers, in_host, swap_time, early_layers);
  QueueRun run;
  for (int i = 0; i < layers * steps; ++i) {
    const int waits = queue.begin_layer().waits;
    run.waits += waits;
    if (i % layers == 0) run.first_waits += waits;
  }
  run.violations = static_cast<double>(queue.violations()) / queue.swaps();
  return run;
}

// "if the system ... decides not to swap in the first layer of the next token, the subsequent token
// will need to wait at the first layer" (3.4.1).
TEST(PieQueueTest, TheFirstLayersOfAStepAreWaitedForUnlessTheyMayComeEarly) {
  const QueueRun none = run_queue(9, 2, 2, 0);
  EXPECT_EQ(none.violations, 0);
  EXPECT_GE(none.first_waits, 20) << "in every step";
  const QueueRun one = run_queue(9, 2, 2, 1);
  EXPECT_EQ(one.first_waits, 0) << "but for those behind it";
  EXPECT_GT(one.waits, 0);
  const QueueRun two = run_queue(9, 2, 2, 2);
  EXPECT_EQ(two.waits, 0);
  EXPECT_GT(two.violations, one.violations);
  const QueueRun all = run_queue(9, 2, 2, PieQueue::kAllLayers);
  EXPECT_EQ(all.waits, 0);
  EXPECT_EQ(all.violations, two.violations) << "no others want to";
}

// The trigger of growth (3.4.2): nearly all swap-ins are for the next step if few layers are in
// host memory, fewer the more layers there are, and almost none if the link is full.
TEST(PieQueueTest, ViolationsSayHowFarTheLinkIsFromFull) {
  for (const int swap_time : {1, 2, 3}) {
    SCOPED_TRACE(swap_time);
    double before = 1;
    int in_host = 1;
    for (; in_host < 47; ++in_host) {
      const QueueRun run = run_queue(48, in_host, swap_time, PieQueue::kAllLayers);
      if (run.waits > 0) break;
      if (in_host == 1) {
        EXPECT_GT(run.violations, 0.85);
      }
      EXPECT_LT(run.violations, before) << in_host;
      before = run.violations;
    }
    EXPECT_LT(before, 0.15) << "the last without waits: " << in_host - 1;
    EXPECT_NEAR(in_host, 48 / swap_time, 2) << "the link-saturation condition (3.1)";
  }
}

// Runs our layer swapping in the same simulated time; copies go in one direction only.
struct SwapRun {
  int loads = 0, waits = 0;
};
SwapRun run_swaps(int layers, int swapped, int spare, int swap_time, int steps) {
  LayerTable table({.layers = layers, .blocks = 10, .most = swapped, .spare = spare});
  table.recut(swapped);
  SwapRun run;
  int now = 0, link = 0;
  std::map<int, int> arrives;
  const auto load = [&] {
    while (table.next_to_load() >= 0) {
      const int layer = table.next_to_load();
      table.begin_load(layer);
      arrives[layer] = link = std::max(link, now) + swap_time;
      ++run.loads;
    }
  };
  load();
  now = link;  // loads before the first step are not counted as waits
  for (int step = 0; step < steps; ++step) {
    for (int layer = 0; layer < layers; ++layer) {
      if (table.is_swapped(layer)) {
        run.waits += std::max(0, arrives.at(layer) - now);
        now = std::max(now, arrives.at(layer));
        table.confirm(layer);
      }
      ++now;
      if (!table.is_swapped(layer)) continue;
      table.leave(layer);
      load();
    }
  }
  return run;
}

TEST(PieQueueTest, SwappingALayerOnceAStepNeedsFewerCopies) {
  // In figure 4 two of nine layers are in host memory, and there are two buffers: that leaves room
  // for 9/9 of the blocks. Two swapped layers that share one buffer leave room for more.
  PieQueue queue(9, 2, 2);
  constexpr int kSteps = 20;
  for (int layer = 0; layer < 9 * kSteps; ++layer) queue.begin_layer();
  const SwapRun same = run_swaps(9, 2, 1, 2, kSteps);
  EXPECT_EQ(same.waits, 0);
  EXPECT_LT(2 * same.loads, queue.swaps());
}

// The link-saturation condition (3.1): t_swap * m <= t_compute * n. With one buffer the link idles
// while the buffer's layer computes.
TEST(PieQueueTest, SwappingWaitsOnlyWhereTheLinkIsFull) {
  for (const int layers : {8, 9, 24, 40, 48, 80}) {
    for (int swapped = 3; swapped < layers; ++swapped) {
      for (int swap_time = 1; swap_time <= 8; ++swap_time) {
        SCOPED_TRACE(testing::Message() << layers << " " << swapped << " " << swap_time);
        const int gap = layers / swapped;
        EXPECT_EQ(run_swaps(layers, swapped, 1, swap_time, 10).waits == 0, gap >= swap_time + 1);
        const int waits = run_swaps(layers, swapped, 2, swap_time, 10).waits;
        const bool is_one = LayerSwapSizes{.layers = layers}.spare_with(swapped) == 1;
        if (gap >= swap_time + (is_one ? 1 : 0)) {
          EXPECT_EQ(waits, 0);
        }
        if (swapped * swap_time > layers) {
          EXPECT_GT(waits, 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway
