// SPDX-License-Identifier: Apache-2.0
#include "storage/spill_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "base/fault_points.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBlockBytes = 10000;  // takes three blocks of the disk, the last partly used

// Fills `out` with the content of the nth write of `block`.
void fill(std::span<std::byte> out, uint32_t block, uint64_t nth) {
  std::mt19937_64 random(block * 1000003 + nth);
  for (size_t at = 0; at < out.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(out.data() + at, &word, std::min<size_t>(8, out.size() - at));
  }
}

class SpillFileTest : public ::testing::TestWithParam<IoBackend> {
 protected:
  void SetUp() override {
    try {
      queue_ = std::make_unique<IoQueue>(
          IoQueueOptions{.depth = 8, .piece_bytes = 8192, .threads = 4, .backend = GetParam()});
    } catch (const Error&) {
      GTEST_SKIP() << "io_uring is refused";
    }
  }
  ~SpillFileTest() override { disarm_faults(); }

  SpillOptions options(uint32_t blocks) const {
    return {.dir = folder_.path(), .label = "kv", .block_bytes = kBlockBytes, .blocks = blocks};
  }
  void write(SpillFile& file, uint32_t block, uint64_t nth, size_t bytes = kBlockBytes) {
    AlignedBuffer buffer(bytes);
    fill(buffer.span().first(bytes), block, nth);
    file.write(block, buffer.span().first(bytes)).wait();
  }
  // Whether the block reads as its nth write; throws what reading throws.
  bool reads_as(SpillFile& file, uint32_t block, uint64_t nth, size_t bytes = kBlockBytes) {
    AlignedBuffer buffer(kBlockBytes), expected(bytes);
    fill(expected.span().first(bytes), block, nth);
    const auto payload = file.read(block, buffer.span()).wait();
    return payload.size() == bytes && std::memcmp(payload.data(), expected.data(), bytes) == 0;
  }
  // Returns the code of the error that reading the block throws, if any.
  std::optional<ErrorCode> error_reading(SpillFile& file, uint32_t block) {
    try {
      AlignedBuffer buffer(kBlockBytes);
      file.read(block, buffer.span()).wait();
    } catch (const Error& error) {
      return error.code();
    }
    return std::nullopt;
  }

  TempFolder folder_;
  std::unique_ptr<IoQueue> queue_;
};

// These access the file's bytes without SpillFile's knowledge.
std::vector<std::byte> raw_read(const SpillFile& file, uint64_t offset, size_t bytes) {
  std::vector<std::byte> out(bytes);
  const ssize_t n =
      ::pread(file.file().descriptor(), out.data(), bytes, static_cast<off_t>(offset));
  EXPECT_EQ(n, static_cast<ssize_t>(bytes));
  return out;
}
void raw_write(const SpillFile& file, uint64_t offset, std::span<const std::byte> bytes) {
  const ssize_t n =
      ::pwrite(file.file().descriptor(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
  EXPECT_EQ(n, static_cast<ssize_t>(bytes.size()));
}

TEST_P(SpillFileTest, GivesBackWhatWasWritten) {
  SpillFile file(*queue_, options(16));
  EXPECT_EQ(file.file_bytes(), 16u * 12288);
  for (uint32_t block = 0; block < 16; ++block) write(file, block, 1, kBlockBytes - block * 600);
  for (uint32_t block = 16; block-- > 0;) {
    EXPECT_TRUE(reads_as(file, block, 1, kBlockBytes - block * 600));
    EXPECT_EQ(file.payload_bytes(block), kBlockBytes - block * 600);
  }
}

TEST_P(SpillFileTest, ReadsWaitForWritesOfTheSameBlock) {
  SpillFile file(*queue_, options(2));
  AlignedBuffer out[4] = {AlignedBuffer(kBlockBytes), AlignedBuffer(kBlockBytes),
                          AlignedBuffer(kBlockBytes), AlignedBuffer(kBlockBytes)};
  AlignedBuffer in(kBlockBytes);
  for (uint64_t round = 0; round < 100; ++round) {
    std::vector<IoTicket> writes;
    for (uint64_t i = 0; i < 4; ++i) {
      fill(out[i].span().first(kBlockBytes), 1, round * 4 + i);
      writes.push_back(file.write(1, out[i].span().first(kBlockBytes)));
    }
    const auto payload = file.read(1, in.span()).wait();
    ASSERT_EQ(std::memcmp(payload.data(), out[3].data(), kBlockBytes), 0);
  }
}

TEST_P(SpillFileTest, ManyRandomWritesAndReads) {
  constexpr uint32_t kBlocks = 24;
  SpillFile file(*queue_, options(kBlocks));
  std::map<uint32_t, std::pair<uint64_t, size_t>> content;  // block: number of the write, length
  std::mt19937 random(4);
  for (uint64_t i = 1; i <= 1500; ++i) {
    const auto block = static_cast<uint32_t>(random() % kBlocks);
    if (random() % 2) {
      const size_t bytes = 1 + random() % kBlockBytes;
      write(file, block, i, bytes);
      content[block] = {i, bytes};
    } else if (content.contains(block)) {
      ASSERT_TRUE(reads_as(file, block, content[block].first, content[block].second));
    } else {
      EXPECT_EQ(error_reading(file, block), ErrorCode::kCorrupt) << "it holds nothing";
    }
  }
}

// All 10,000 reads of blocks that are not what was written must fail.
TEST_P(SpillFileTest, DetectsFlipsSwapsStaleBlocksAndTruncation) {
  constexpr uint32_t kBlocks = 8;
  constexpr size_t kStride = 12288;
  SpillFile file(*queue_, options(kBlocks));
  file.file().stop_direct();  // direct I/O would not let the test write at any offset
  for (uint32_t block = 0; block < kBlocks; ++block) write(file, block, 1);
  const auto older = raw_read(file, 0, kBlocks * kStride);
  for (uint32_t block = 0; block < kBlocks; ++block) write(file, block, 2);
  const auto good = raw_read(file, 0, kBlocks * kStride);
  std::mt19937 random(5);
  AlignedBuffer buffer(kBlockBytes);
  int detected = 0;
  const auto expect_detected = [&](uint32_t block) {
    try {
      file.read(block, buffer.span()).wait();
      ADD_FAILURE() << "block " << block << " passed";
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kCorrupt);
      ++detected;
    }
  };
  const auto bytes_of = [&](const std::vector<std::byte>& all, uint32_t block) {
    return std::span(all).subspan(block * kStride, kBlockBytes);
  };
  for (int i = 0; i < 2500; ++i) {
    const auto block = static_cast<uint32_t>(random() % kBlocks);
    const auto other = static_cast<uint32_t>((block + 1 + random() % 7) % kBlocks);
    const uint64_t at = file.offset_of(block);
    // Flips one bit.
    const size_t flipped = random() % kBlockBytes;
    const std::byte bit{static_cast<unsigned char>(1 << random() % 8)};
    const std::byte bad = good[at + flipped] ^ bit;
    raw_write(file, at + flipped, {&bad, 1});
    expect_detected(block);
    // Puts in another block's bytes, and those of an earlier write; a part of them must be enough.
    raw_write(file, at, bytes_of(good, other));
    expect_detected(block);
    raw_write(file, at, bytes_of(older, block));
    expect_detected(block);
    const size_t torn = 1 + random() % (kBlockBytes - 1);
    raw_write(file, at, bytes_of(good, block).first(torn));
    expect_detected(block);
    raw_write(file, at, bytes_of(good, block));
  }
  EXPECT_EQ(detected, 10000);
  for (uint32_t block = 0; block < kBlocks; ++block) EXPECT_TRUE(reads_as(file, block, 2));

  for (uint64_t size = 0; size < kBlocks * kStride; size += 777) {
    ASSERT_EQ(::ftruncate(file.file().descriptor(), static_cast<off_t>(size)), 0);
    for (uint32_t block = 0; block < kBlocks; ++block) {
      if (file.offset_of(block) + kBlockBytes <= size) continue;
      EXPECT_TRUE(error_reading(file, block).has_value()) << size << " " << block;
    }
    raw_write(file, 0, good);
  }
}

TEST_P(SpillFileTest, AWriteThatFailedIsNotReadAsTheOneBefore) {
  SpillFile file(*queue_, options(2));
  for (const FaultKind kind : {FaultKind::kEio, FaultKind::kEnospc}) {
    write(file, 0, 1);
    arm_fault("io.write", 1, kind);
    EXPECT_THROW(write(file, 0, 2), Error);
    disarm_faults();
    EXPECT_EQ(error_reading(file, 0), ErrorCode::kCorrupt);
    write(file, 0, 3);
    EXPECT_TRUE(reads_as(file, 0, 3));
  }
}

// Injects every kind of fault into every call in turn.
TEST_P(SpillFileTest, EveryCallSurvivesEveryFault) {
  struct Point {
    const char* name;
    uint64_t hits;  // six blocks of two pieces each
  };
  for (const auto& [point, hits] : {Point{"io.open", 1},
                                    {"io.allocate", 1},
                                    {"io.direct", 1},
                                    {"io.write", 12},
                                    {"io.read", 12}}) {
    for (const FaultKind kind : {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr,
                                 FaultKind::kShort, FaultKind::kEinval}) {
      for (uint64_t nth = 1; nth <= hits + 1; ++nth) {
        arm_fault(point, nth, kind);
        try {
          SpillFile file(*queue_, options(6));
          for (uint32_t block = 0; block < 6; ++block) write(file, block, nth);
          for (uint32_t block = 0; block < 6; ++block) {
            EXPECT_TRUE(reads_as(file, block, nth)) << point << " " << nth;
          }
        } catch (const Error& error) {
          EXPECT_TRUE(kind == FaultKind::kEio || kind == FaultKind::kEnospc) << error.what();
          EXPECT_EQ(error.code(), ErrorCode::kIo);
          EXPECT_THAT(error.what(), HasSubstr(folder_.path().string()));
        }
        if (nth == hits) {
          EXPECT_GE(fault_hits(point), hits) << point;
        }
        disarm_faults();
      }
    }
  }
}

TEST_P(SpillFileTest, AFailedReadLeavesTheBlockReadable) {
  SpillFile file(*queue_, options(1));
  write(file, 0, 1);
  arm_fault("io.read", 1, FaultKind::kEio);
  EXPECT_EQ(error_reading(file, 0), ErrorCode::kIo);
  disarm_faults();
  EXPECT_TRUE(reads_as(file, 0, 1));
}

TEST_P(SpillFileTest, HoldsItsBudgetAndTheDiskToIt) {
  SpillOptions over = options(100);
  over.budget_bytes = 99 * 12288;
  EXPECT_THAT(error_of([&] { SpillFile file(*queue_, over); }),
              AllOf(HasSubstr("--disk-memory"), HasSubstr("12.0 KiB more")));
  over.blocks = 99;
  EXPECT_NO_THROW(SpillFile(*queue_, over));
  SpillOptions huge = options(UINT32_MAX);
  huge.block_bytes = size_t{1} << 30;
  EXPECT_THAT(error_of([&] { SpillFile file(*queue_, huge); }), HasSubstr("missing"));
  arm_fault("io.allocate", 1, FaultKind::kEnospc);
  EXPECT_THAT(error_of([&] { SpillFile file(*queue_, options(1)); }), HasSubstr("is full"));
}

TEST_P(SpillFileTest, RefusesBlocksAndBuffersThatDoNotFit) {
  SpillFile file(*queue_, options(2));
  AlignedBuffer buffer(2 * kBlockBytes);
  const auto code_of = [](auto&& fn) {
    try {
      fn();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kInternal;
  };
  const auto kWrong = ErrorCode::kInvalidArgument;
  EXPECT_EQ(code_of([&] { file.write(2, buffer.span().first(8)).wait(); }), kWrong);
  EXPECT_EQ(code_of([&] { file.write(0, buffer.span().first(kBlockBytes + 1)).wait(); }), kWrong);
  EXPECT_EQ(code_of([&] { file.write(0, buffer.span().subspan(8, 8)).wait(); }), kWrong);
  EXPECT_EQ(code_of([&] { file.write(0, {}).wait(); }), kWrong);
  write(file, 0, 1);
  EXPECT_EQ(code_of([&] { file.read(0, buffer.span().first(8192)).wait(); }), kWrong);
  file.drop(0);
  EXPECT_EQ(error_reading(file, 0), ErrorCode::kCorrupt);
  write(file, 0, 2);
  EXPECT_TRUE(reads_as(file, 0, 2));
}

TEST_P(SpillFileTest, APayloadGoesOnOverBlocksThatMayBeJoined) {
  SpillOptions joined = options(8);
  joined.joined_blocks = 3;
  SpillFile file(*queue_, joined);
  AlignedBuffer buffer(4 * kBlockBytes), back(3 * kBlockBytes);
  const auto write_joined = [&](uint32_t block, uint64_t nth, size_t bytes) {
    fill(buffer.span().first(bytes), block, nth);
    file.write(block, buffer.span().first(bytes)).wait();
  };
  const auto reads_back = [&](uint32_t block, uint64_t nth, size_t bytes) {
    fill(buffer.span().first(bytes), block, nth);
    const auto payload = file.read(block, back.span()).wait();
    return payload.size() == bytes && std::memcmp(payload.data(), buffer.data(), bytes) == 0;
  };
  write(file, 1, 1);
  write(file, 3, 1);
  write_joined(0, 2, 3 * kBlockBytes);
  write_joined(4, 3, 2 * kBlockBytes - 77);
  EXPECT_TRUE(reads_back(0, 2, 3 * kBlockBytes));
  EXPECT_TRUE(reads_back(4, 3, 2 * kBlockBytes - 77));
  EXPECT_TRUE(reads_as(file, 3, 1));
  EXPECT_EQ(error_reading(file, 1), ErrorCode::kCorrupt) << "covered: it holds nothing";
  // Writing into the middle of a joined payload breaks it, and reading it must notice.
  write(file, 2, 4);
  EXPECT_TRUE(reads_as(file, 2, 4));
  EXPECT_THROW(reads_back(0, 2, 3 * kBlockBytes), Error);
  // A payload may neither be longer than the limit nor reach past the last block.
  EXPECT_THROW(write_joined(0, 5, 3 * kBlockBytes + 1), Error);
  EXPECT_THROW(write_joined(6, 5, 2 * kBlockBytes + 1), Error);
}

INSTANTIATE_TEST_SUITE_P(Backends, SpillFileTest,
                         ::testing::Values(IoBackend::kUring, IoBackend::kThreads),
                         [](const auto& each) {
                           return each.param == IoBackend::kUring ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace spillway
