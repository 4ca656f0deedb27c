// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <vector>

#include "base/cpu_list.h"
#include "base/error.h"

namespace spillway {
namespace {

TEST(ThreadPoolTest, CoversEveryIndexOnceWhateverTheCounts) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 5, 16, 17, 1000}) {
      for (const int64_t grain : {1, 4, 16}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int worker) {
          EXPECT_LT(worker, threads);
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
      }
    }
  }
}

TEST(ThreadPoolTest, RethrowsAWorkersExceptionAndStaysUsable) {
  ThreadPool pool(4);
  EXPECT_THROW(pool.run([](int worker) {
    if (worker == 3) fail(ErrorCode::kDevice, "worker {} failed", worker);
  }),
               Error);
  std::atomic<int> ran{0};
  pool.run([&](int) { ++ran; });
  EXPECT_EQ(ran.load(), 4);
}

TEST(ThreadPoolTest, SurvivesManyShortJobs) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 2'000; ++i) pool.run([&](int worker) { sum += worker; });
  EXPECT_EQ(sum.load(), 2'000 * 3);
}

TEST(ThreadPoolTest, RefusesSillyThreadCounts) {
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(1 << 20), Error);
}

TEST(ThreadPoolTest, WorkersRunWhereTheyArePlaced) {
  const std::vector<int> allowed = allowed_cpus();
  const ThreadPlacement placement = place_threads(0, allowed);
  EXPECT_EQ(placement.threads, static_cast<int>(allowed.size()));
  ThreadPool pool(placement);
  for (int i = 0; i < 10; ++i) {
    pool.run([&](int worker) {
      if (worker == 0) return;
      EXPECT_EQ(sched_getcpu(), allowed[static_cast<size_t>(worker)]);
    });
  }
  EXPECT_EQ(allowed_cpus(), allowed);  // the caller's are left alone
}

TEST(ThreadPoolTest, PlacesAreCheckedBeforeThreadsStart) {
  const std::vector<int> allowed = allowed_cpus();
  EXPECT_THROW(place_threads(0, {kMaxCpus - 1}), Error);
  EXPECT_THROW(place_threads(static_cast<int>(allowed.size()) + 1, allowed), Error);
  EXPECT_EQ(place_threads(1, allowed).cpus.size(), 1U);
  EXPECT_EQ(place_threads(3).threads, 3);
  EXPECT_EQ(place_threads(0).threads, available_threads());
}

TEST(ThreadPoolTest, MoreThreadsThanProcessorsDoNotHang) {
  ThreadPool pool(4 * available_threads() + 1);
  std::atomic<int> ran{0};
  for (int i = 0; i < 200; ++i) pool.run([&](int) { ++ran; });
  EXPECT_EQ(ran.load(), 200 * pool.threads());
}

}  // namespace
}  // namespace spillway
