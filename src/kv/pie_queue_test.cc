// SPDX-License-Identifier: Apache-2.0
// The paper's queue, and that ours makes do with fewer copies (Pie, 3.3 and figure 4).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kv/layer_table.h"
#include "kv/test_pie_queue.h"

namespace spillway {
namespace {

// Nine layers, a swap takes as long as two of them, layers 8 and 9 are in host memory.
TEST(PieQueueTest, DoesWhatFigure4Says) {
  PieQueue queue(9, 2, 2);
  struct Expected {
    int out, in;
  };
  // "a swap-out does not occur during the computation of layer 1"; layer 1 goes out during 2 and 3;
  // at 4 layer 3 goes out and 8 comes to where 1 was; and so on, a pair every other layer.
  constexpr Expected kFirstStep[] = {{0, 0}, {1, 0}, {0, 0}, {3, 8}, {0, 0},
                                     {5, 9}, {0, 0}, {7, 1}, {0, 0}};
  for (int layer = 1; layer <= 9; ++layer) {
    const PieQueue::Decision decision = queue.begin_layer();
    EXPECT_EQ(decision.out, kFirstStep[layer - 1].out) << "at layer " << layer;
    EXPECT_EQ(decision.in, kFirstStep[layer - 1].in) << "at layer " << layer;
    EXPECT_EQ(decision.waits, 0);
  }
  EXPECT_EQ(queue.in_host(), (std::vector{3, 5, 7}));
  // A queue from now on: who went out first comes in first; nobody ever waits.
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

// Ours in the same time, in one direction.
struct TurnsRun {
  int loads = 0, waits = 0;
};
TurnsRun run_turns(int layers, int turning, int spare, int swap_time, int steps) {
  LayerTable table({.layers = layers, .blocks = 10, .most = turning, .spare = spare});
  table.recut(turning);
  TurnsRun run;
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
  now = link;  // what comes before the first step is nobody's wait
  for (int step = 0; step < steps; ++step) {
    for (int layer = 0; layer < layers; ++layer) {
      if (table.takes_turns(layer)) {
        run.waits += std::max(0, arrives.at(layer) - now);
        now = std::max(now, arrives.at(layer));
        table.confirm(layer);
      }
      ++now;
      if (!table.takes_turns(layer)) continue;
      table.leave(layer);
      load();
    }
  }
  return run;
}

TEST(PieQueueTest, TurnsNeedFewerCopiesForTheSameRoom) {
  // Of figure 4: two layers in host memory and two buffers, of nine: 9 / 9 of the blocks, as two
  // layers that take turns in one buffer leave more.
  PieQueue queue(9, 2, 2);
  constexpr int kSteps = 20;
  for (int layer = 0; layer < 9 * kSteps; ++layer) queue.begin_layer();
  const TurnsRun same = run_turns(9, 2, 1, 2, kSteps);
  EXPECT_EQ(same.waits, 0);
  EXPECT_LT(2 * same.loads, queue.swaps());
}

// The link-saturation condition (3.1): t_swap * m <= t_compute * n. With one buffer it is in use
// while its layer computes, and the link idles.
TEST(PieQueueTest, TurnsWaitOnlyWhereTheLinkIsFull) {
  for (const int layers : {8, 9, 24, 40, 48, 80}) {
    for (int turning = 3; turning < layers; ++turning) {
      for (int swap_time = 1; swap_time <= 8; ++swap_time) {
        SCOPED_TRACE(testing::Message() << layers << " " << turning << " " << swap_time);
        const int gap = layers / turning;
        EXPECT_EQ(run_turns(layers, turning, 1, swap_time, 10).waits == 0, gap >= swap_time + 1);
        const int waits = run_turns(layers, turning, 2, swap_time, 10).waits;
        const bool is_one = TurnSizes{.layers = layers}.spare_with(turning) == 1;
        if (gap >= swap_time + (is_one ? 1 : 0)) {
          EXPECT_EQ(waits, 0);
        }
        if (turning * swap_time > layers) {
          EXPECT_GT(waits, 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway
