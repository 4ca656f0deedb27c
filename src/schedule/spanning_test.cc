// SPDX-License-Identifier: Apache-2.0
// Tests sequences that span pools, through the scheduler until they end.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "schedule/scheduler.h"

namespace spillway {
namespace {

constexpr int64_t kRun = 16;  // blocks

struct Wanted {
  int32_t prompt, answer;
};

// Runs until all sequences have ended and returns the number of preemptions. Checks that every
// table has what its step needs, and changes pools only after whole runs.
int64_t run(BlockAllocator& allocator, const std::vector<Wanted>& wanted, int step_tokens) {
  Scheduler scheduler(allocator, {.max_step_tokens = step_tokens});
  std::map<RequestId, int32_t> left;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const RequestId id{i};
    left[id] = wanted[i].answer;
    scheduler.add(id, wanted[i].prompt, wanted[i].prompt + wanted[i].answer);
  }
  for (int step = 0; !left.empty(); ++step) {
    if (step > 20'000) {
      ADD_FAILURE() << "it does not come to an end";
      return 0;
    }
    const StepPlan plan = scheduler.next_step();
    EXPECT_TRUE(plan.exhausted.empty());
    EXPECT_TRUE(!plan.chunks.empty() || !plan.preempted.empty());
    if (testing::Test::HasFailure()) return 0;
    for (const ScheduledChunk& chunk : plan.chunks) {
      const std::vector<BlockId>& table = *chunk.block_table;
      EXPECT_GE(static_cast<int64_t>(table.size()), blocks_for_tokens(chunk.start + chunk.tokens));
      for (size_t i = 1; i < table.size(); ++i) {
        const Tier before = table[i - 1].tier, now = table[i].tier;
        EXPECT_TRUE(now == before || (now > before && i % kRun == 0))
            << "pool " << index_of(before) << " to " << index_of(now) << " at block " << i;
      }
    }
    for (const ScheduledChunk& chunk : plan.chunks) {
      if (!chunk.last) continue;
      if (--left.at(chunk.id) == 0) {
        scheduler.remove(chunk.id);
        left.erase(chunk.id);
      } else {
        scheduler.append(chunk.id);
      }
    }
  }
  EXPECT_EQ(allocator.free(), allocator.total());
  for (const Tier pool : allocator.pools())
    EXPECT_EQ(allocator.unpromised(pool), allocator.total(pool)) << index_of(pool);
  return scheduler.preemptions();
}

TEST(SpanningScheduleTest, ASequenceLargerThanEveryPoolEnds) {
  BlockAllocator allocator({20, 40, 33}, kRun);
  EXPECT_EQ(run(allocator, {{1200, 80}}, 128), 0);
}

TEST(SpanningScheduleTest, ShortOnesGoOnBesideIt) {
  BlockAllocator allocator({20, 100}, kRun);
  run(allocator, {{1700, 50}, {30, 40}, {10, 100}, {200, 5}}, 128);
}

TEST(SpanningScheduleTest, OneIsPreemptedWhereThereIsNoRoomForTwo) {
  BlockAllocator allocator({40, 56}, kRun);
  EXPECT_GT(run(allocator, {{400, 520}, {420, 500}, {410, 520}}, 256), 0);
}

TEST(SpanningScheduleTest, RandomOnesEnd) {
  std::mt19937 random(3);
  const auto pick = [&](int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(random);
  };
  for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    std::vector<int32_t> pools;
    for (int pool = 0; pool < pick(1, 3); ++pool) pools.push_back(pick(0, 60));
    pools.push_back(pick(20, 60));
    if (pools.size() > 3) pools.resize(3);
    BlockAllocator allocator(pools, kRun);
    std::vector<Wanted> wanted;
    for (int request = 0; request < pick(1, 8); ++request) {
      const auto most = static_cast<int>(allocator.longest());
      const int prompt = pick(1, pick(0, 1) == 0 ? most - 1 : 60);
      wanted.push_back({prompt, pick(1, std::min(200, most - prompt))});
    }
    run(allocator, wanted, pick(16, 300));
  }
}

}  // namespace
}  // namespace spillway
