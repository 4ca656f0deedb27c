// SPDX-License-Identifier: Apache-2.0
#include "storage/direct_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "base/fault_points.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

struct ExtentBuffer : AlignedBuffer {
  explicit ExtentBuffer(uint64_t bytes) : AlignedBuffer(DirectReader::buffer_bytes(bytes)) {}
};

Bytes random_bytes(size_t n) {
  std::mt19937_64 random(n);
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

class DirectReaderTest : public ::testing::Test {
 protected:
  DirectReaderTest() : content_(random_bytes(3'000'001)), path_(folder_.write("f", content_)) {
    uint64_t at = 100;
    // The extents have odd sizes all over a file of odd size; the last ones reach its end.
    for (const uint64_t bytes : {4096, 1, 8192, 100'000, 4095, 4097, 1'000'000, 12, 0}) {
      extents_.push_back({0, at, bytes});
      at += bytes + (bytes % 7) * 996;
    }
    extents_.push_back({0, 2'500'000, content_.size() - 2'500'000});
    extents_.push_back({0, content_.size() - 1, 1});
  }

  void read_and_check(const DirectReader& reader, const Extent& extent) {
    ExtentBuffer buffer(extent.bytes);
    const auto read = reader.read(extent, buffer.span());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read.data()) % kDirectAlignment,
              extent.offset % kDirectAlignment);
    EXPECT_TRUE(std::ranges::equal(read, std::span(content_).subspan(extent.offset, extent.bytes)));
  }

  std::vector<std::filesystem::path> paths() const { return {path_}; }

  TempFolder folder_{std::filesystem::current_path()};  // on a disk: /tmp may be a tmpfs
  Bytes content_;
  std::filesystem::path path_;
  std::vector<Extent> extents_;
};

TEST_F(DirectReaderTest, GivesTheBytesOfAnyExtentWhereItsOffsetIsInABlock) {
  const DirectReader reader(paths());
  for (const Extent& extent : extents_) read_and_check(reader, extent);
}

TEST_F(DirectReaderTest, ReadsOfSeveralThreadsDoNotDisturbEachOther) {
  const DirectReader reader(paths());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const Extent& extent : extents_) read_and_check(reader, extent);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DirectReaderTest, GoesOnWithoutDirectReadsWhereThereAreNone) {
  const std::filesystem::path memory = "/dev/shm";  // tmpfs, which may or may not accept O_DIRECT
  if (!std::filesystem::is_directory(memory)) GTEST_SKIP() << "no tmpfs";
  const TempFolder folder(memory);
  const std::vector<std::filesystem::path> there{folder.write("f", content_)};
  const DirectReader reader(there);
  for (const Extent& extent : extents_) read_and_check(reader, extent);
}

TEST_F(DirectReaderTest, ErrorsNameFileAndOffset) {
  ExtentBuffer buffer(10);
  const DirectReader reader(paths());
  EXPECT_THAT(error_of([&] {
                reader.read({0, content_.size() - 5, 10}, buffer.span());
              }),
              HasSubstr("10 bytes at byte 2999996 end past the file's 3000001 bytes"));
  EXPECT_THAT(error_of([&] { reader.read({1, 0, 10}, buffer.span()); }), HasSubstr("file 1 of 1"));
  const std::vector<std::filesystem::path> missing{path_, folder_ / "missing"};
  EXPECT_THAT(error_of([&] { const DirectReader r(missing); }), HasSubstr("missing"));
}

TEST_F(DirectReaderTest, AFileThatIsTruncatedMeanwhileIsAnError) {
  ExtentBuffer buffer(500'000);
  const DirectReader reader(paths());
  std::filesystem::resize_file(path_, 2'600'000);
  EXPECT_THAT(error_of([&] {
                reader.read({0, 2'500'000, 500'000}, buffer.span());
              }),
              HasSubstr("truncated"));
  read_and_check(reader, {0, 100, 5000});
}

// Injects every kind of fault into every call in turn.
TEST_F(DirectReaderTest, EveryCallSurvivesEveryFault) {
  const Extent extent{.file = 0, .offset = 5000, .bytes = 2'000'000};
  ExtentBuffer buffer(extent.bytes);
  for (const char* point : {"io.open", "io.read"}) {
    for (const FaultKind kind : {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr,
                                 FaultKind::kShort, FaultKind::kEinval}) {
      for (uint64_t nth = 1; nth <= 3; ++nth) {
        arm_fault("io.read", 1, FaultKind::kShort);  // makes one read take several calls
        arm_fault(point, nth, kind);
        std::memset(buffer.data(), 0, buffer.size());
        try {
          const DirectReader reader(std::vector{path_});
          const auto read = reader.read(extent, buffer.span());
          EXPECT_EQ(std::memcmp(read.data(), content_.data() + extent.offset, extent.bytes), 0);
        } catch (const Error& error) {
          EXPECT_TRUE(kind != FaultKind::kEintr && kind != FaultKind::kShort);
          EXPECT_EQ(error.code(), ErrorCode::kIo);
          EXPECT_THAT(error.what(), HasSubstr(path_.string()));
        }
        disarm_faults();
      }
    }
  }
}

}  // namespace
}  // namespace spillway
