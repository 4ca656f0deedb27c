// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <thread>
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

TEST(ThreadPoolTest, RethrowsTheFirstPiecesExceptionAndStaysUsable) {
  ThreadPool pool(4);
  std::atomic<int> computed{0};
  const auto each = [&](int64_t begin, int64_t end, int) {
    computed += static_cast<int>(end - begin);
    if (begin <= 30 && 30 < end) fail(ErrorCode::kDevice, "the first");
    if (begin <= 90 && 90 < end) fail(ErrorCode::kInternal, "the second");
  };
  for (int i = 0; i < 20; ++i) {
    computed = 0;
    try {
      pool.parallel_for(100, 1, each);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDevice);
    }
    EXPECT_EQ(computed.load(), 100);
  }
}

TEST(ThreadPoolTest, SurvivesManyShortJobs) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 20'000; ++i) {
    pool.parallel_for(3, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j) sum += j + 1;
    });
  }
  EXPECT_EQ(sum.load(), 20'000 * 6);
}

TEST(ThreadPoolTest, OthersDoTheShareOfAWorkerThatIsHeldUp) {
  ThreadPool pool(2);
  // Worker 1 stays in its first piece until worker 0 has computed all other pieces.
  std::atomic<bool> inside{false}, leave{false};
  std::atomic<int> by_others{0};
  const auto job = [&](int64_t, int64_t, int worker) {
    if (worker == 0) {
      while (!inside) std::this_thread::yield();
      ++by_others;
      leave = by_others == 3;
    } else {
      inside = true;
      while (!leave) std::this_thread::yield();
    }
  };
  // There are four pieces, of which two belong to worker 1's share.
  pool.parallel_for(4, 1, job);
  EXPECT_EQ(by_others.load(), 3);
}

TEST(ThreadPoolTest, PiecesAreAsLargeAsAsked) {
  ThreadPool pool(2);
  std::atomic<int64_t> covered{0};
  std::atomic<int> small{0};
  pool.parallel_for(
      1000, 10,
      [&](int64_t begin, int64_t end, int) {
        EXPECT_EQ(begin % 10, 0);
        covered += end - begin;
        if (end - begin < 80) ++small;
      },
      8);
  EXPECT_EQ(covered.load(), 1000);
  EXPECT_LE(small.load(), 2);  // the remainders of the two shares
}

// All work is done, whether workers were spinning or asleep when it came.
TEST(ThreadPoolTest, WorkersThatExpectJobsFindThem) {
  ThreadPool pool(3);
  for (const bool soon : {true, false, true}) {
    pool.expect_jobs(soon);
    for (int pause_us : {0, 300, 3000}) {
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      std::atomic<int64_t> sum = 0;
      pool.parallel_for(1000, 1, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
      EXPECT_EQ(sum, 1000);
    }
  }
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
    pool.parallel_for(64, 1, [&](int64_t, int64_t, int worker) {
      if (worker == 0) return;
      EXPECT_EQ(sched_getcpu(), allowed[static_cast<size_t>(worker)]);
    });
  }
  EXPECT_EQ(allowed_cpus(), allowed);  // the caller's affinity is unchanged
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
  for (int i = 0; i < 200; ++i) {
    pool.parallel_for(pool.threads(), 1, [&](int64_t begin, int64_t end, int) {
      ran += static_cast<int>(end - begin);
    });
  }
  EXPECT_EQ(ran.load(), 200 * pool.threads());
}

}  // namespace
}  // namespace spillway
