// SPDX-License-Identifier: Apache-2.0
#include "storage/weight_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "base/fault_points.h"
#include "storage/direct_reader.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> random_bytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> all(bytes);
  for (std::byte& each : all) each = static_cast<std::byte>(random());
  return all;
}

class WeightFileTest : public ::testing::Test {
 protected:
  ~WeightFileTest() override { disarm_faults(); }

  // Writes tensors of these sizes; the ith one has the bytes of seed i.
  std::unique_ptr<TemporaryFile> write(std::span<const uint64_t> sizes,
                                       std::vector<Extent>& extents, bool keep_name = false) {
    WeightFileWriter writer(queue_, {.dir = folder_.path(),
                                     .bytes = WeightFileWriter::bytes_for(sizes),
                                     .staging_bytes = 64 << 10,
                                     .keep_name = keep_name});
    for (size_t i = 0; i < sizes.size(); ++i) {
      extents.push_back(writer.append(random_bytes(sizes[i], i)));
    }
    return writer.finish();
  }

  TempFolder folder_;
  IoQueue queue_{{.depth = 4, .piece_bytes = 8192}};
};

constexpr uint64_t kSizes[] = {1, 4096, 5, 70000, 8192, 300001, 4095, 100};

TEST_F(WeightFileTest, ReadersFindEachExtentByThePath) {
  for (const bool keep_name : {false, true}) {
    std::vector<Extent> extents;
    const auto file = write(kSizes, extents, keep_name);
    const DirectReader reader(std::vector{file->path()});
    const IoFile again(file->path());
    for (size_t i = 0; i < extents.size(); ++i) {
      EXPECT_EQ(extents[i].bytes, kSizes[i]);
      EXPECT_EQ(extents[i].offset % kDirectAlignment, 0u);
      const auto expected = random_bytes(kSizes[i], i);
      AlignedBuffer buffer(DirectReader::buffer_bytes(kSizes[i]));
      const auto read = reader.read(extents[i], buffer.span());
      EXPECT_EQ(std::memcmp(read.data(), expected.data(), expected.size()), 0) << i;
      auto second = queue_.read_extent(again, extents[i].offset, kSizes[i], buffer.span());
      second.ticket.wait();
      EXPECT_EQ(std::memcmp(second.bytes.data(), expected.data(), expected.size()), 0) << i;
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(WeightFileTest, FillsInOrderAndNoMoreThanAskedFor) {
  constexpr uint64_t kBytes = 123457;
  WeightFileWriter writer(queue_,
                          {.dir = folder_.path(), .bytes = kBytes, .staging_bytes = 64 << 10});
  uint64_t next = 0;
  writer.append(kBytes, [&](uint64_t offset, std::span<std::byte> out) {
    EXPECT_EQ(offset, next);
    EXPECT_LE(out.size(), 8u << 10);
    next += out.size();
    std::memset(out.data(), 7, out.size());
  });
  EXPECT_EQ(next, kBytes);
  EXPECT_THAT(error_of([&] { writer.append(random_bytes(4096, 1)); }), HasSubstr("weight file"));
  EXPECT_EQ(writer.finish()->bytes(), align_up(kBytes));
}

TEST_F(WeightFileTest, RefusesADiskWithoutRoomBeforeAnythingIsWritten) {
  EXPECT_THAT(error_of([&] {
                WeightFileWriter writer(queue_, {.dir = folder_.path(), .bytes = 1ull << 60});
              }),
              HasSubstr("missing"));
}

TEST_F(WeightFileTest, EveryWriteSurvivesEveryFault) {
  std::vector<Extent> extents;
  arm_fault("io.write", 1000000, FaultKind::kEio);
  write(kSizes, extents);
  const uint64_t writes = fault_hits("io.write");
  disarm_faults();
  ASSERT_GT(writes, 40u);
  for (const FaultKind kind :
       {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr, FaultKind::kShort}) {
    for (uint64_t nth = 1; nth <= writes; nth += 5) {
      arm_fault("io.write", nth, kind);
      const bool recovers = kind == FaultKind::kEintr || kind == FaultKind::kShort;
      try {
        extents.clear();
        const auto file = write(kSizes, extents);
        EXPECT_TRUE(recovers);
        const DirectReader reader(std::vector{file->path()});
        AlignedBuffer buffer(DirectReader::buffer_bytes(kSizes[5]));
        const auto read = reader.read(extents[5], buffer.span());
        EXPECT_EQ(std::memcmp(read.data(), random_bytes(kSizes[5], 5).data(), read.size()), 0);
      } catch (const Error& error) {
        EXPECT_FALSE(recovers);
        EXPECT_EQ(error.code(), ErrorCode::kIo);
      }
      disarm_faults();
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

}  // namespace
}  // namespace spillway
