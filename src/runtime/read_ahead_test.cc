// SPDX-License-Identifier: Apache-2.0
#include "runtime/read_ahead.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/fault_points.h"
#include "storage/test_folder.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

class ReadAheadTest : public testing::Test {
 protected:
  static constexpr int64_t kSegments = 7;
  static constexpr size_t kBytes = 5000;

  ReadAheadTest() {
    std::mt19937 random(3);
    for (std::byte& byte : file_) byte = static_cast<std::byte>(random());
    files_ = {folder_.write("weights", std::span<const std::byte>(file_))};
    reader_ = std::make_unique<ExtentReader>(machine_.queue, files_);
    arm_fault("io.read", ~uint64_t{0} / 2, FaultKind::kEio);  // never fires: counts the reads
  }
  void TearDown() override { disarm_faults(); }

  std::unique_ptr<ReadAhead> make(int buffers, bool ahead = true) {
    auto made =
        std::make_unique<ReadAhead>(*machine_.accelerator, machine_.host, *reader_, buffers, ahead);
    made->restart(extents());
    return made;
  }
  static std::vector<Extent> extents() {
    std::vector<Extent> all;
    for (int64_t i = 0; i < kSegments; ++i)
      all.push_back({0, 100 + static_cast<uint64_t>(i) * (kBytes + 3000), kBytes});
    return all;
  }
  // Takes pieces [first, end), copies them to the device, and expects the bytes of the file there.
  void expect_pieces(ReadAhead& ahead, int64_t first, int64_t end) {
    ahead.seek(first, end);
    for (int64_t piece = first; piece < end; ++piece) {
      const auto bytes = ahead.take();
      ASSERT_EQ(bytes.size(), kBytes);
      const CopyPiece copy{to_.data(), bytes.data(), kBytes};
      stream_->copy_to_device({&copy, 1});
      ahead.sent(*stream_);
      stream_->synchronize();
      const Extent extent = extents()[static_cast<size_t>(piece % kSegments)];
      EXPECT_EQ(std::memcmp(to_.data(), file_.data() + extent.offset, kBytes), 0) << piece;
    }
  }
  static void wait_until(const std::function<bool()>& condition) {
    while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  TestMachine machine_{true};
  TempFolder folder_;
  std::vector<std::byte> file_ = std::vector<std::byte>(100 + kSegments * (kBytes + 3000));
  std::vector<std::filesystem::path> files_;
  std::unique_ptr<ExtentReader> reader_;
  Buffer to_ = machine_.accelerator->allocate(kBytes, MemoryTag::kStaging);
  std::unique_ptr<DeviceStream> stream_ = machine_.accelerator->make_stream();
};

TEST_F(ReadAheadTest, PiecesComeRoundAndRoundThroughFewBuffers) {
  for (const int buffers : {1, 2, 5, 7, 40}) {
    for (const bool reads_ahead : {true, false}) {
      SCOPED_TRACE(buffers);
      const auto ahead = make(buffers, reads_ahead);
      int64_t at = 0;
      for (const int64_t count : {1, 3, 2, 9, 1, 20}) {
        expect_pieces(*ahead, at, at + count);
        at += count;
      }
    }
  }
}

TEST_F(ReadAheadTest, ReadsBeforeTheFirstRequest) {
  const auto ahead = make(4);
  wait_until([&] {
    ahead->go_on();
    return fault_hits("io.read") == 4;
  });
  EXPECT_FALSE(ahead->has_more_to_read()) << "its buffers are full";
  expect_pieces(*ahead, 0, 2);
  wait_until([&] {
    ahead->go_on();
    return fault_hits("io.read") == 6;  // two more, in place of the two that were taken
  });
  EXPECT_FALSE(ahead->has_more_to_read());
}

TEST_F(ReadAheadTest, OrDoesNotWhereThatIsNotWanted) {
  const auto ahead = make(4, /*ahead=*/false);
  ahead->go_on();
  EXPECT_EQ(fault_hits("io.read"), 0u);
  expect_pieces(*ahead, 0, 3);
  EXPECT_EQ(fault_hits("io.read"), 3u);
  EXPECT_FALSE(ahead->has_more_to_read());
}

TEST_F(ReadAheadTest, AnyPieceMayBeNextAndAnotherRoundMayBegin) {
  const auto ahead = make(3);
  expect_pieces(*ahead, 0, 2);
  expect_pieces(*ahead, 5, 8);
  expect_pieces(*ahead, 1, 4);
  ahead->restart(extents());
  expect_pieces(*ahead, 0, 10);
}

TEST_F(ReadAheadTest, AFailureAheadOfTimeIsRetriedAndLaterOnesAreReported) {
  disarm_faults();
  arm_fault("io.read", 2, FaultKind::kEio);
  const auto ahead = make(3);
  ahead->go_on();
  wait_until([] { return fault_hits("io.read") >= 3; });
  EXPECT_NO_THROW(expect_pieces(*ahead, 0, 5));
  disarm_faults();
  arm_fault("io.read", 1, FaultKind::kEio, /*count=*/1'000'000);
  int failures = 0;
  for (int i = 0; i < 4; ++i) {
    try {
      // Pieces that were read before the fault are good.
      expect_pieces(*ahead, 5, 12);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      ++failures;
    }
  }
  EXPECT_EQ(failures, 4);
  disarm_faults();
  EXPECT_NO_THROW(expect_pieces(*ahead, 5, 12));
}

}  // namespace
}  // namespace spillway
