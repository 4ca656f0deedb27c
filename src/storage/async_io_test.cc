// SPDX-License-Identifier: Apache-2.0
#include "storage/async_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/fault_points.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBlock = kDirectAlignment;

std::vector<std::byte> random_bytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> all(bytes);
  for (std::byte& each : all) each = static_cast<std::byte>(random());
  return all;
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

bool uring_works() {
  try {
    IoQueue queue({.backend = IoBackend::kUring});
    return true;
  } catch (const Error&) {
    return false;
  }
}

class AsyncIoTest : public ::testing::TestWithParam<IoBackend> {
 protected:
  void SetUp() override {
    if (GetParam() == IoBackend::kUring && !uring_works()) GTEST_SKIP() << "io_uring is refused";
  }
  ~AsyncIoTest() override { disarm_faults(); }

  // Uses small pieces, so that small files are split into many.
  IoQueueOptions small_pieces() const {
    return {.depth = 4, .piece_bytes = 2 * kBlock, .threads = 3, .backend = GetParam()};
  }

  TempFolder folder_;
};

TEST_P(AsyncIoTest, ReadsExtentsAtAnyOffset) {
  const auto content = random_bytes(20 * kBlock + 77, 1);
  const IoFile file(folder_.write("f", content));
  IoQueue queue(small_pieces());
  EXPECT_EQ(queue.backend(), GetParam());
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const size_t offset = random() % content.size();
    const size_t bytes = 1 + random() % (content.size() - offset);
    AlignedBuffer buffer(align_up(bytes) + kDirectAlignment);
    ExtentRead read = queue.read_extent(file, offset, bytes, buffer.span());
    read.ticket.wait();
    ASSERT_TRUE(equal(read.bytes, std::span(content).subspan(offset, bytes))) << offset;
  }
}

TEST_P(AsyncIoTest, WritesWhatIsReadBackWithManyOnTheirWay) {
  const IoFile file(folder_.write("f", ""), IoFile::Access::kReadWrite);
  IoQueue queue(small_pieces());
  constexpr size_t kRequests = 40, kBytes = 5 * kBlock;
  const auto content = random_bytes(kRequests * kBytes, 3);
  AlignedBuffer out(content.size()), in(content.size());
  std::memcpy(out.data(), content.data(), content.size());
  std::vector<IoTicket> tickets;
  for (size_t i = 0; i < kRequests; ++i) {
    tickets.push_back(queue.write(file, i * kBytes, out.span().subspan(i * kBytes, kBytes)));
  }
  wait_all(tickets);
  EXPECT_EQ(queue.bytes_written(), content.size());
  tickets.clear();
  for (size_t i = kRequests; i-- > 0;) {
    tickets.push_back(queue.read(file, i * kBytes, in.span().subspan(i * kBytes, kBytes)));
  }
  wait_all(tickets);
  EXPECT_TRUE(equal(in.span(), content));
  EXPECT_EQ(queue.bytes_read(), content.size());
}

TEST_P(AsyncIoTest, NamesPathAndOffsetWhereAFileEnds) {
  const IoFile file(folder_.write("short_one", random_bytes(3 * kBlock + 100, 4)));
  IoQueue queue(small_pieces());
  AlignedBuffer buffer(8 * kBlock);
  EXPECT_THAT(error_of([&] { queue.read(file, 0, buffer.span()).wait(); }),
              AllOf(HasSubstr("short_one"), HasSubstr("at byte 12388"), HasSubstr("ends")));
  EXPECT_THAT(error_of([&] { queue.read(file, 16 * kBlock, buffer.span()).wait(); }),
              AllOf(HasSubstr("short_one"), HasSubstr("at byte 65536")));
  // A file that ends early is no error if the needed bytes were read.
  queue.read(file, 0, buffer.span().first(4 * kBlock), 3 * kBlock + 100).wait();
  EXPECT_THAT(
      error_of([&] { queue.read_extent(file, 3 * kBlock + 50, 51, buffer.span()).ticket.wait(); }),
      HasSubstr("short_one"));
}

TEST_P(AsyncIoTest, AFailedRequestHarmsNoOther) {
  const auto content = random_bytes(8 * kBlock, 5);
  const IoFile file(folder_.write("f", content));
  IoQueue queue(small_pieces());
  AlignedBuffer good(8 * kBlock), bad(64 * kBlock), other(8 * kBlock);
  for (int i = 0; i < 20; ++i) {
    IoTicket first = queue.read(file, 0, good.span());
    IoTicket second = queue.read(file, 4 * kBlock, bad.span());
    IoTicket third = queue.read(file, 0, other.span());
    EXPECT_THROW(second.wait(), Error);
    EXPECT_NO_THROW(first.wait());
    EXPECT_NO_THROW(third.wait());
    EXPECT_FALSE(third.pending());
    EXPECT_NO_THROW(third.wait()) << "a second time it does nothing";
    ASSERT_TRUE(equal(good.span(), content) && equal(other.span(), content));
  }
}

TEST_P(AsyncIoTest, CallsBackBeforeTheTicketIsDone) {
  const IoFile file(folder_.write("f", random_bytes(8 * kBlock, 6)));
  IoQueue queue(small_pieces());
  AlignedBuffer buffer(16 * kBlock);
  std::atomic<int> well{0}, failed{0};
  const auto count = [&](const IoFailure* failure) { ++(failure ? failed : well); };
  queue.read(file, 0, buffer.span().first(8 * kBlock), count).wait();
  EXPECT_EQ(well, 1);
  EXPECT_THROW(queue.read(file, 0, buffer.span(), count).wait(), Error);
  EXPECT_EQ(failed, 1);
}

TEST_P(AsyncIoTest, SeveralThreadsShareIt) {
  const auto content = random_bytes(64 * kBlock, 7);
  const IoFile file(folder_.write("f", content));
  IoQueue queue(small_pieces());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      AlignedBuffer buffer(16 * kBlock);
      for (int i = 0; i < 100; ++i) {
        const size_t at = random() % 48 * kBlock;
        queue.read(file, at, buffer.span()).wait();
        wrong += !equal(buffer.span(), std::span(content).subspan(at, buffer.size()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Each thread must get its own bytes although it waits only for its own tickets while all users
// read and write.
TEST_P(AsyncIoTest, UsersOnManyThreadsGetTheirOwnBytes) {
  IoQueue queue(small_pieces());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (unsigned seed = 0; seed < 6; ++seed) {
    threads.emplace_back([&, seed] {
      const auto user = static_cast<IoUser>(seed % kIoUserCount);
      const auto path = folder_.write(std::to_string(seed), "");
      const IoFile file(path, IoFile::Access::kReadWrite, user);
      AlignedBuffer out(9 * kBlock), in(out.size());
      for (uint64_t i = 0; i < 30; ++i) {
        const auto content = random_bytes(out.size(), 100 * seed + i);
        std::memcpy(out.data(), content.data(), content.size());
        queue.write(file, i % 4 * kBlock, out.span()).wait();
        queue.read(file, i % 4 * kBlock, in.span()).wait();
        wrong += !equal(in.span(), content);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(AsyncIoTest, DestroyingTheQueueEndsEveryTicket) {
  const IoFile file(folder_.write("f", random_bytes(256 * kBlock, 8)));
  for (int i = 0; i < 20; ++i) {
    AlignedBuffer buffer(8 * 32 * kBlock);
    std::vector<IoTicket> tickets;
    {
      IoQueue queue(small_pieces());
      for (size_t at = 0; at < buffer.size(); at += 32 * kBlock) {
        tickets.push_back(queue.read(file, at, buffer.span().subspan(at, 32 * kBlock)));
      }
    }
    for (IoTicket& ticket : tickets) {
      ASSERT_TRUE(ticket.is_done());
      try {
        ticket.wait();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCancelled);
      }
    }
  }
}

TEST_P(AsyncIoTest, DrainWaitsForAll) {
  const IoFile file(folder_.write("f", random_bytes(64 * kBlock, 9)));
  IoQueue queue(small_pieces());
  AlignedBuffer first(64 * kBlock), second(64 * kBlock);
  queue.drain();
  IoTicket a = queue.read(file, 0, first.span()), b = queue.read(file, 0, second.span());
  queue.drain();
  EXPECT_TRUE(a.is_done() && b.is_done());
}

// Injects every kind of fault into every call in turn.
TEST_P(AsyncIoTest, EveryReadAndWriteSurvivesEveryFault) {
  constexpr size_t kBytes = 11 * kBlock;  // 6 pieces
  const auto content = random_bytes(kBytes, 10);
  AlignedBuffer out(kBytes), in(kBytes);
  std::memcpy(out.data(), content.data(), kBytes);
  IoQueue queue(small_pieces());
  for (const char* point : {"io.read", "io.write"}) {
    for (const FaultKind kind : {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr,
                                 FaultKind::kShort, FaultKind::kEinval}) {
      const bool recovers =
          kind == FaultKind::kEintr || kind == FaultKind::kShort || kind == FaultKind::kEinval;
      for (uint64_t nth = 1; nth <= 7; ++nth) {
        const IoFile file(folder_.write("f", ""), IoFile::Access::kReadWrite);
        std::memset(in.data(), 0, kBytes);
        arm_fault(point, nth, kind);
        std::string error = "no error";
        try {
          queue.write(file, 0, out.span()).wait();
          queue.read(file, 0, in.span()).wait();
        } catch (const Error& thrown) {
          EXPECT_EQ(thrown.code(), ErrorCode::kIo);
          error = thrown.what();
        }
        disarm_faults();
        if (recovers || nth > 6) {
          EXPECT_EQ(error, "no error") << point << " " << nth;
          EXPECT_TRUE(equal(in.span(), content)) << point << " " << nth;
        } else {
          EXPECT_THAT(error, AllOf(HasSubstr("at byte "), HasSubstr((folder_ / "f").string())));
        }
      }
    }
  }
}

TEST_P(AsyncIoTest, ManyFaultsAtOnceStillGiveTheRightBytes) {
  const auto content = random_bytes(200 * kBlock + 5, 11);
  const IoFile file(folder_.write("f", content));
  IoQueue queue(small_pieces());
  std::mt19937 random(12);
  for (int round = 0; round < 30; ++round) {
    for (int i = 0; i < 30; ++i) {
      arm_fault("io.read", 1 + random() % 60, random() % 2 ? FaultKind::kShort : FaultKind::kEintr,
                1 + random() % 3);
    }
    const size_t offset = random() % kBlock;
    const size_t bytes = content.size() - offset;
    AlignedBuffer buffer(align_up(bytes) + kDirectAlignment);
    ExtentRead read = queue.read_extent(file, offset, bytes, buffer.span());
    read.ticket.wait();
    ASSERT_TRUE(equal(read.bytes, std::span(content).subspan(offset)));
    disarm_faults();
  }
}

TEST_P(AsyncIoTest, GoesThroughThePageCacheWhereDirectIoIsRefused) {
  const auto content = random_bytes(9 * kBlock + 5, 13);
  const auto path = folder_.write("f", content);
  IoQueue queue(small_pieces());
  AlignedBuffer buffer(10 * kBlock);
  for (const char* point : {"io.direct", "io.read"}) {  // refused at open, or later
    arm_fault(point, 1, FaultKind::kEinval);
    const IoFile file(path);
    auto read = queue.read_extent(file, 0, content.size(), buffer.span());
    read.ticket.wait();
    disarm_faults();
    EXPECT_FALSE(file.is_direct());
    EXPECT_TRUE(equal(read.bytes, content));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AsyncIoTest,
                         ::testing::Values(IoBackend::kUring, IoBackend::kThreads),
                         [](const auto& each) {
                           return each.param == IoBackend::kUring ? "Uring" : "Threads";
                         });

TEST(IoQueueTest, TakesThreadsWhereIoUringIsRefused) {
  for (const FaultKind kind : {FaultKind::kEnosys, FaultKind::kEnomem}) {
    arm_fault("io.uring_setup", 1, kind, 2);
    const IoQueue queue;
    EXPECT_EQ(queue.backend(), IoBackend::kThreads);
    EXPECT_THAT(error_of([] { IoQueue forced({.backend = IoBackend::kUring}); }),
                HasSubstr("io_uring"));
    disarm_faults();
  }
}

TEST(IoQueueTest, CostsNothingWhereItIsNotUsed) {
  arm_fault("io.uring_setup", 1'000'000, FaultKind::kEio);  // never fires; counts calls
  {
    IoQueue queue;
    queue.drain();
    EXPECT_EQ(queue.bytes_read() + queue.bytes_written(), 0u);
  }
  EXPECT_EQ(fault_hits("io.uring_setup"), 0u);
  disarm_faults();
}

// Callbacks that do not return stand for a slow disk: they occupy all threads of their user.
TEST(IoQueueTest, AUserWhoseDiskHangsHoldsUpNoOther) {
  const TempFolder folder;
  const auto content = random_bytes(8 * kBlock, 1);
  const auto path = folder.write("f", content);
  const IoFile slow(path), quick(path, IoFile::Access::kRead, IoUser::kKv);
  AlignedBuffer for_slow(8 * kBlock), for_quick(8 * kBlock);
  IoQueue queue({.depth = 4, .piece_bytes = kBlock, .threads = 2, .backend = IoBackend::kThreads});
  std::atomic<bool> mended{false};
  std::vector<IoTicket> hanging;
  for (size_t i = 0; i < 8; ++i) {
    hanging.push_back(queue.read(slow, i * kBlock, for_slow.span().subspan(i * kBlock, kBlock),
                                 [&](const IoFailure*) { mended.wait(false); }));
  }
  for (int i = 0; i < 20; ++i) {
    queue.read(quick, 0, for_quick.span()).wait();
    EXPECT_TRUE(equal(for_quick.span(), content));
  }
  mended = true;
  mended.notify_all();
  wait_all(hanging);
  EXPECT_TRUE(equal(for_slow.span(), content));
}

TEST(IoQueueTest, SubmittingIsTriedAgain) {
  if (!uring_works()) GTEST_SKIP() << "io_uring is refused";
  const TempFolder folder;
  const auto content = random_bytes(16 * kBlock, 1);
  const IoFile file(folder.write("f", content));
  arm_fault("io.submit", 1, FaultKind::kEintr, 5);
  arm_fault("io.submit", 7, FaultKind::kEnomem, 3);
  IoQueue queue({.depth = 2, .piece_bytes = kBlock, .backend = IoBackend::kUring});
  AlignedBuffer buffer(content.size());
  queue.read(file, 0, buffer.span()).wait();
  EXPECT_TRUE(equal(buffer.span(), content));
  EXPECT_GE(fault_hits("io.submit"), 7u);
  disarm_faults();
}

TEST(IoFileTest, RefusesWhatIsNoRegularFile) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { IoFile file(folder / "absent"); }), HasSubstr("absent"));
  EXPECT_THAT(error_of([&] { IoFile file(folder.path()); }), HasSubstr("not a regular file"));
  for (const FaultKind kind : {FaultKind::kEio, FaultKind::kEnospc}) {
    const auto path = folder.write("f", "x");
    arm_fault("io.open", 1, kind);
    EXPECT_THAT(error_of([&] { IoFile file(path); }), HasSubstr("cannot open"));
    arm_fault("io.open", 1, FaultKind::kEintr);
    EXPECT_EQ(error_of([&] { IoFile file(path); }), "no error");
    disarm_faults();
  }
}

}  // namespace
}  // namespace spillway
