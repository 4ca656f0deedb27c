// SPDX-License-Identifier: Apache-2.0
// Tests the controller in simulated time: a model of a server gives the times of steps and copies.
#include "kv/expansion_control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace spillway {
namespace {

constexpr LayerSwapSizes kSizes{.layers = 48, .blocks = 1000, .most = 40, .spare = 2};
constexpr int64_t kBlockBytes = 1 << 18;
constexpr double kBlocksOfOne = 20;  // the blocks of one sequence

struct Server {
  double weights_s = 0.02;    // part of a step's time: reading the weights
  double per_block_s = 1e-7;  // part of a step's time, for all layers
  double per_sequence_s = 0;  // part of a step's time, if it is bound by compute
  double link = 40e9;         // bytes per second
  // Copies are measured as this many times longer, as if something held them up.
  double held_up = 1;
  bool knows_early = true;  // whether it reports early copies
  double demand = 1e9;      // sequences
  int32_t in_request = 1;   // blocks of one request: it begins with all of them or not at all
  double noise = 0.05;
  int young_steps = 0;        // first steps, in which all sequences have just begun and are short
  double weights_wait_s = 0;  // weights wait for the same link
  int32_t enough_blocks = 0;  // blocks that another sequence like those elsewhere would need
  int steps = 0;
  std::mt19937 random{1};

  double noisy(double value) {
    return value * std::uniform_real_distribution<double>(1 - noise, 1 + noise)(random);
  }
  int32_t used(int swapped) const {
    const int32_t room = kSizes.blocks_with(swapped);
    return static_cast<int32_t>(std::min<double>(room - room % in_request, demand * kBlocksOfOne));
  }
  LayerSwapMeasure step(int swapped) {
    LayerSwapMeasure measure;
    const int32_t blocks = used(swapped);
    const double age = ++steps < young_steps ? 0.5 + 0.5 * steps / young_steps : 1;
    const double sequences = blocks / (kBlocksOfOne * age);
    const double compute = noisy(weights_s + per_block_s * blocks + per_sequence_s * sequences);
    measure.used_blocks = blocks;
    measure.tokens = static_cast<int64_t>(sequences);
    measure.enough_blocks = enough_blocks;
    measure.memory_pressure =
        std::max<double>(demand * kBlocksOfOne, enough_blocks) > kSizes.blocks_with(swapped);
    measure.link_is_busy = weights_wait_s > 0;
    if (swapped > 0) {
      measure.copied_bytes = static_cast<uint64_t>(int64_t{swapped} * blocks * kBlockBytes);
      const double busy = noisy(static_cast<double>(measure.copied_bytes) / link);
      measure.copied_s = busy * held_up;
      // With one buffer the link idles while a layer uses it.
      const bool has_two = kSizes.spare_with(swapped) > 1;
      const double idle =
          has_two ? 0 : 1 - (kSizes.layers / swapped - 0.4) * swapped / kSizes.layers;
      const double room = compute * (1 - idle);
      measure.waited_s = std::max(0.0, busy - room);
      if (knows_early) {
        measure.ahead = has_two ? 2 : 1;
        measure.early = (has_two && busy < room ? 1 : 0) + (2 * busy < room ? 1 : 0);
      }
    }
    measure.seconds = compute + measure.waited_s + weights_wait_s;
    return measure;
  }
};

struct Served {
  double seconds = 0;
  int64_t tokens = 0;
  int changes = 0;
  double rate() const { return static_cast<double>(tokens) / seconds; }
};
Served serve(Server& server, ExpansionControl& control, int steps, double change_s = 0) {
  Served served;
  bool has_changed = false;
  for (int step = 0; step < steps; ++step) {
    const int before = control.swapped_count();
    LayerSwapMeasure measure = server.step(before);
    measure.changed_s = has_changed ? change_s : 0;
    served.seconds += measure.seconds;
    served.tokens += measure.tokens;
    has_changed = control.next(measure) != before;
    served.changes += has_changed ? 1 : 0;
  }
  return served;
}
double fixed_rate(Server server, int swapped) {
  Served served;
  for (int step = 0; step < 200; ++step) {
    const LayerSwapMeasure measure = server.step(swapped);
    served.seconds += measure.seconds;
    served.tokens += measure.tokens;
  }
  return served.rate();
}

void expect_near_best(const Served& served, const Server& server, const ExpansionControl& control) {
  double best = 0;
  for (const int swapped : {0, 4, 8, 12, 16, 20, 24, 32, 40})
    best = std::max(best, fixed_rate(server, swapped));
  EXPECT_GE(served.rate(), 0.98 * best) << "at " << control.swapped_count();
}

TEST(ExpansionControlTest, LevelsGrowInRoomAndLeaveLayersTheirTime) {
  const ExpansionControl control(kSizes, kBlockBytes);
  EXPECT_EQ(control.levels().size(), 38u) << "but seven and nine, which bring no more than eight";
  EXPECT_EQ(control.swapped_count(), 0);
  EXPECT_EQ(ExpansionControl({.layers = 48, .blocks = 1000, .most = 36, .spare = 1}, 1).levels(),
            (std::vector{0, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 36}));
  const ExpansionControl none({.layers = 48, .blocks = 1000, .most = 0}, kBlockBytes);
  EXPECT_EQ(none.levels(), std::vector{0});
}

// It must be as good as the best fixed number of swapped layers, whatever the link and the step.
TEST(ExpansionControlTest, FindsWhatIsBest) {
  for (const double link : {2e9, 10e9, 25e9, 55e9, 150e9, 419e9, 4000e9}) {
    for (const double weights_s : {0.005, 0.02, 0.1}) {
      SCOPED_TRACE(testing::Message() << link / 1e9 << " GB/s, " << weights_s * 1e3 << " ms");
      Server server{.weights_s = weights_s, .link = link};
      ExpansionControl control(kSizes, kBlockBytes);
      serve(server, control, 400);
      const Served served = serve(server, control, 2000);
      expect_near_best(served, server, control);
      EXPECT_GE(served.rate(), 0.99 * fixed_rate(server, 0)) << "tries cost next to nothing";
    }
  }
}

// Throughput falls while sequences that began together grow, whatever room there is; this must not
// be taken for the effect of more room.
TEST(ExpansionControlTest, IsNotMisledByABeginning) {
  for (const int young : {30, 60, 120, 250}) {
    for (const double link : {55e9, 200e9}) {
      SCOPED_TRACE(testing::Message() << young << " steps, " << link / 1e9 << " GB/s");
      Server server{.link = link, .young_steps = young};
      ExpansionControl control(kSizes, kBlockBytes);
      serve(server, control, 2 * young + 200);
      const Served served = serve(server, control, 500);
      expect_near_best(served, server, control);
    }
  }
}

// The waiting requests are too large for the room that a first growth brings.
TEST(ExpansionControlTest, GrowsWhereAFirstStepIsTooSmallForAnyRequest) {
  for (const int32_t in_request : {90, 150, 240}) {
    SCOPED_TRACE(in_request);
    Server server{.link = 200e9, .in_request = in_request};
    ExpansionControl control(kSizes, kBlockBytes);
    serve(server, control, 400);
    const Served served = serve(server, control, 500);
    expect_near_best(served, server, control);
  }
}

// Demand may fall at any time, also while the effect of a growth is being measured: the lower
// demand is no proof that the growth was worth it.
TEST(ExpansionControlTest, DoesNotGrowOnceFewerCome) {
  for (int steps = 8; steps < 600; steps += 3) {
    SCOPED_TRACE(steps);
    Server server{.per_sequence_s = 0.02, .link = 4000e9};
    ExpansionControl control(kSizes, kBlockBytes);
    serve(server, control, steps);
    server.demand = 5;
    serve(server, control, 12);  // ends an interval that began before
    const int before = control.swapped_count();
    for (int i = 0; i < 100; ++i) {
      serve(server, control, 1);
      ASSERT_LE(control.swapped_count(), before);
    }
  }
}

// The paper's trigger (3.4.2): observed early copies count more than the estimate from their times.
TEST(ExpansionControlTest, GrowsWhileCopiesAreEarlyWhateverTheLinkSeemsToBring) {
  for (const double link : {200e9, 300e9, 419e9, 800e9}) {
    SCOPED_TRACE(testing::Message() << link / 1e9 << " GB/s");
    const auto found = [&](double held_up, bool knows_early) {
      Server server{.link = link, .held_up = held_up, .knows_early = knows_early};
      ExpansionControl control(kSizes, kBlockBytes);
      serve(server, control, 2000);
      if (knows_early) expect_near_best(serve(server, control, 2000), server, control);
      return control.swapped_count();
    };
    const int estimated = found(1.3, false), seen = found(1.3, true), known = found(1, false);
    EXPECT_LT(estimated, known) << "it is misled";
    EXPECT_GT(seen, estimated);
    EXPECT_NEAR(seen, known, 2);
  }
}

// Feeds intervals by hand until the number stands still; only the share of early copies differs.
TEST(ExpansionControlTest, TheShareOfEarlyCopiesDecidesWhereNoMoreSeemsToFit) {
  const auto grows_with = [](int early_in_window) {
    ExpansionControl control(kSizes, kBlockBytes);
    Server server{.link = 200e9, .knows_early = false, .noise = 0};
    serve(server, control, 2000);
    const int before = control.swapped_count();
    for (int step = 0; step < 400 && control.swapped_count() == before; ++step) {
      LayerSwapMeasure measure = server.step(before);
      EXPECT_LT(measure.waited_s, 0.025 * measure.seconds) << "no step waits for long";
      measure.ahead = 2;
      measure.early = step % 8 >= 8 - early_in_window ? 1 : 0;
      control.next(measure);
    }
    return control.swapped_count() > before;
  };
  EXPECT_FALSE(grows_with(0)) << "copies arrive in time, but without time to spare";
  EXPECT_FALSE(grows_with(6));
  EXPECT_TRUE(grows_with(7));
  EXPECT_TRUE(grows_with(8));
}

// After a failed try time must pass before the next one, but not if the link has become
// faster since.
TEST(ExpansionControlTest, WhatATryHasCostIsForgottenWithTheLinkThatItFailedOn) {
  Server server{.link = 400e9, .knows_early = false};
  ExpansionControl control(kSizes, kBlockBytes);
  serve(server, control, 2000);
  const int undisturbed = control.swapped_count();
  server.link = 200e9;
  server.knows_early = true;  // so that now and then it tries more than seems to fit
  constexpr double kChange = 1.0;
  const int tries = serve(server, control, 3000, kChange).changes;
  ASSERT_GE(tries, 2);
  ASSERT_LT(control.swapped_count(), undisturbed);
  server.link = 400e9;
  serve(server, control, 300, kChange);
  EXPECT_GE(control.swapped_count(), undisturbed);
}

TEST(ExpansionControlTest, NoLayerIsSwappedWithoutMemoryPressure) {
  Server server{.demand = 30};
  ExpansionControl control(kSizes, kBlockBytes);
  EXPECT_EQ(serve(server, control, 2000).changes, 0);
  EXPECT_EQ(control.swapped_count(), 0);
}

TEST(ExpansionControlTest, GoesBackWhenDemandGoesAway) {
  Server server{.link = 400e9};
  ExpansionControl control(kSizes, kBlockBytes);
  serve(server, control, 800);
  EXPECT_GT(control.swapped_count(), 8);
  server.demand = 60;  // a little more than fits without swapped layers
  serve(server, control, 800);
  EXPECT_GT(control.swapped_count(), 0);
  EXPECT_GE(kSizes.blocks_with(control.swapped_count()), 60 * kBlocksOfOne);
  const int before = control.swapped_count();
  server.demand = 10;
  serve(server, control, 800);
  EXPECT_LT(control.swapped_count(), before);
  EXPECT_EQ(control.swapped_count(), 0);
}

// Requests that run with KV elsewhere use no room here, but would use it: the number must
// not oscillate.
TEST(ExpansionControlTest, KeepsWhatIsEnoughForAnother) {
  Server server;
  ExpansionControl control(kSizes, kBlockBytes);
  serve(server, control, 1000);
  ASSERT_GT(control.swapped_count(), 0);
  server.demand = 1;
  server.enough_blocks = (kSizes.blocks + kSizes.blocks_with(control.swapped_count())) / 2;
  serve(server, control, 300);
  const Served later = serve(server, control, 2000);
  EXPECT_LE(later.changes, 2);
  EXPECT_GE(kSizes.blocks_with(control.swapped_count()), server.enough_blocks);
  server.enough_blocks = 0;
  serve(server, control, 300);
  EXPECT_EQ(control.swapped_count(), 0);
}

TEST(ExpansionControlTest, StopsWhereMoreSequencesBringNothing) {
  Server server{.weights_s = 0.001, .per_block_s = 0, .per_sequence_s = 0.001, .link = 400e9};
  ExpansionControl control(kSizes, kBlockBytes);
  serve(server, control, 400);
  EXPECT_LE(serve(server, control, 4000).changes, 40) << "tries are rare";
  EXPECT_LT(kSizes.blocks_with(control.swapped_count()), 2 * kSizes.blocks);
}

TEST(ExpansionControlTest, BearsADisturbanceThatPasses) {
  Server server{.link = 200e9};
  ExpansionControl control(kSizes, kBlockBytes);
  serve(server, control, 1000);
  const int before = control.swapped_count();
  ASSERT_GT(before, 0);
  server.link /= 2;
  serve(server, control, 6);
  server.link *= 2;
  serve(server, control, 12);
  EXPECT_EQ(control.swapped_count(), before);
}

// Half of the bus is lost and comes back, again and again: throughput must not be below that
// without swapped layers for longer than two seconds.
TEST(ExpansionControlTest, FollowsADisturbanceThatLasts) {
  Server server{.link = 120e9};
  const double baseline = fixed_rate(server, 0);
  ExpansionControl control(kSizes, kBlockBytes);
  serve(server, control, 1000);
  const int undisturbed = control.swapped_count();
  ASSERT_GT(undisturbed, 0);
  for (int round = 0; round < 3; ++round) {
    server.link = 60e9;
    double below_s = 0;
    for (int step = 0; step < 1500; ++step) {
      const LayerSwapMeasure measure = server.step(control.swapped_count());
      const bool below = static_cast<double>(measure.tokens) / measure.seconds < 0.97 * baseline;
      below_s = below ? below_s + measure.seconds : 0;
      EXPECT_LT(below_s, 2.0);
      control.next(measure);
    }
    EXPECT_LT(control.swapped_count(), undisturbed);
    server.link = 120e9;
    serve(server, control, 600);
    EXPECT_EQ(control.swapped_count(), undisturbed) << "and back";
  }
}

// The time of the changes counts as well: where a change takes long, failed tries are rarer.
TEST(ExpansionControlTest, ChangesThatTakeLongAreFew) {
  const auto changes_of = [](double change_s) {
    Server server{.link = 40e9};
    ExpansionControl control(kSizes, kBlockBytes);
    serve(server, control, 1000, change_s);
    return serve(server, control, 20000, change_s).changes;
  };
  const int quick = changes_of(0.001), slow = changes_of(0.5);
  EXPECT_GT(quick, 0);
  EXPECT_LT(2 * slow, quick) << slow << " and " << quick;
}

TEST(ExpansionControlTest, WeightsOnTheSameLinkGoFirst) {
  Server server{.link = 400e9, .weights_wait_s = 0.01};
  ExpansionControl control(kSizes, kBlockBytes);
  serve(server, control, 1000);
  EXPECT_EQ(control.swapped_count(), 0);
}

}  // namespace
}  // namespace spillway
