// SPDX-License-Identifier: Apache-2.0
#include "serve/api/reader_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace spillway {
namespace {

constexpr size_t kSmall = 100, kLarge = ReaderQueue::kLargeBytes;

class ReaderQueueTest : public testing::Test {
 protected:
  void push(uint64_t client, size_t bytes) {
    ReaderQueue::Job job{.client = client, .bytes = bytes, .work = [] {}};
    ASSERT_TRUE(queue_.try_push(job));
  }
  // Returns "client:bytes" of the next job.
  std::string take() {
    const auto job = queue_.take();
    return job ? std::to_string(job->client) + ":" + std::to_string(job->bytes) : "none";
  }

  ReaderQueue queue_{100};
};

TEST_F(ReaderQueueTest, OneReaderAtATimeWorksOnLargeBodies) {
  for (int i = 0; i < 3; ++i) push(1, 30 << 20);
  for (int i = 0; i < 3; ++i) push(1, kSmall);
  EXPECT_EQ(take(), "1:31457280") << "small ones do not keep it waiting";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(take(), "1:100") << "nor the other way round";
  push(2, kLarge);
  EXPECT_TRUE(queue_.done(30 << 20));
  EXPECT_EQ(take(), "2:262144") << "another client's turn comes first";
  EXPECT_FALSE(queue_.done(kLarge));
  EXPECT_EQ(take(), "1:31457280");
}

TEST_F(ReaderQueueTest, ClientsTakeTurnsWhateverTheySend) {
  for (int i = 0; i < 6; ++i) push(1, 60'000);
  push(2, kSmall);
  push(2, kSmall);
  push(3, 50'000);
  std::vector<std::string> order;
  for (int i = 0; i < 9; ++i) order.push_back(take());
  const std::vector<std::string> expected = {"2:100",   "2:100",   "3:50000", "1:60000", "1:60000",
                                             "1:60000", "1:60000", "1:60000", "1:60000"};
  EXPECT_EQ(order, expected);
  push(1, 60'000);
  push(2, 60'000);
  EXPECT_EQ(take(), "1:60000") << "what was taken before counts for nothing";
}

TEST_F(ReaderQueueTest, MemoryIsGivenBackWhenTheLastLargeBodyIsDone) {
  push(1, 2 << 20);
  push(1, 2 << 20);
  EXPECT_EQ(take(), "1:2097152");
  EXPECT_FALSE(queue_.done(2 << 20)) << "another comes";
  EXPECT_EQ(take(), "1:2097152");
  EXPECT_TRUE(queue_.done(2 << 20));
  EXPECT_FALSE(queue_.done(kSmall));
}

TEST_F(ReaderQueueTest, TakesAsManyAsItMayAndNothingOnceItIsClosed) {
  for (uint64_t i = 0; i < 100; ++i) push(i, kSmall);
  ReaderQueue::Job job{.client = 1, .bytes = kLarge, .work = [] {}};
  EXPECT_FALSE(queue_.try_push(job));
  EXPECT_NE(job.work, nullptr) << "it is the caller's still";
  std::atomic<int> ended = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (queue_.take()) {
      }
      ++ended;
    });
  }
  queue_.close();
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(ended, 3);
  EXPECT_FALSE(queue_.try_push(job));
}

}  // namespace
}  // namespace spillway
