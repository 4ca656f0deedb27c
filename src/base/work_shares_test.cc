// SPDX-License-Identifier: Apache-2.0
#include "base/work_shares.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace spillway {
namespace {

std::vector<int> hits_of(WorkShares& shares, int64_t units, const std::vector<int>& takers) {
  std::vector<int> hits(static_cast<size_t>(units));
  for (size_t turn = 0, idle = 0; idle < takers.size(); ++turn) {
    const WorkPiece piece = shares.take(takers[turn % takers.size()]);
    idle = piece.empty() ? idle + 1 : 0;
    for (int64_t i = piece.begin; i < piece.end; ++i) ++hits[static_cast<size_t>(i)];
  }
  return hits;
}

TEST(WorkSharesTest, EveryUnitIsTakenOnceWhoeverTakes) {
  WorkShares shares(4);
  for (const std::vector<int>& takers :
       std::vector<std::vector<int>>{{0}, {3}, {0, 1, 2, 3}, {2, 0}}) {
    for (const int64_t units : {int64_t{1}, int64_t{5}, int64_t{64}, WorkShares::kMostUnits}) {
      for (const int used : {1, 2, 4}) {
        shares.deal(units, used, 1);
        EXPECT_EQ(hits_of(shares, units, takers), std::vector<int>(static_cast<size_t>(units), 1));
      }
    }
  }
}

TEST(WorkSharesTest, AWorkerBeginsWithItsOwnShareAndTakesHalvesOfIt) {
  WorkShares shares(2);
  shares.deal(32, 2, 1);
  const WorkPiece first = shares.take(1), second = shares.take(1);
  EXPECT_EQ(first.begin, 16);
  EXPECT_EQ(first.end, 24);
  EXPECT_EQ(second.begin, 24);
  EXPECT_EQ(second.end, 28);
}

TEST(WorkSharesTest, WhoIsDoneTakesFromTheEndOfTheLargestShare) {
  WorkShares shares(3);
  shares.deal(30, 3, 10);  // so each share is taken whole
  EXPECT_EQ(shares.take(0).begin, 0);
  EXPECT_EQ(shares.take(2).begin, 20);
  shares.deal(30, 3, 1);
  for (int i = 0; i < 4; ++i) shares.take(0);  // takes its 10 units in pieces of 5, 3, 1, 1
  shares.take(1);
  const WorkPiece stolen = shares.take(0);
  EXPECT_EQ(stolen.begin, 25);
  EXPECT_EQ(stolen.end, 30);
}

TEST(WorkSharesTest, PiecesHaveAtLeastWhatIsWorthACall) {
  WorkShares shares(1);
  shares.deal(100, 1, 30);
  EXPECT_EQ(shares.take(0).end, 50);
  EXPECT_EQ(shares.take(0).end, 80);
  EXPECT_EQ(shares.take(0).end, 100);
  EXPECT_TRUE(shares.take(0).empty());
}

TEST(WorkSharesTest, ThreadsThatTakeAtOnceNeverShareAUnit) {
  constexpr int kThreads = 4, kJobs = 2000;
  constexpr int64_t kUnits = 97;
  WorkShares shares(kThreads);
  std::atomic<int64_t> taken{0};
  std::vector<std::atomic<int>> hits(static_cast<size_t>(kUnits));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  // All threads take all the time, so that many are late for a job and meet the next one.
  const auto take = [&](int worker) {
    const WorkPiece piece = shares.take(worker);
    for (int64_t i = piece.begin; i < piece.end; ++i) ++hits[static_cast<size_t>(i)];
    taken += piece.end - piece.begin;
    return !piece.empty();
  };
  for (int worker = 1; worker < kThreads; ++worker) {
    threads.emplace_back([&, worker] {
      while (!stop) {
        if (!take(worker)) std::this_thread::yield();
      }
    });
  }
  for (int job = 1; job <= kJobs; ++job) {
    shares.deal(kUnits, 1 + job % kThreads, 1);
    while (taken < job * kUnits) {
      if (!take(0)) std::this_thread::yield();
    }
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(taken.load(), kJobs * kUnits);
  for (const auto& hit : hits) EXPECT_EQ(hit.load(), kJobs);
}

}  // namespace
}  // namespace spillway
