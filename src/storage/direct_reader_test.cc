// SPDX-License-Identifier: Apache-2.0
#include "storage/direct_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "storage/temp_folder.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Arena = std::unique_ptr<std::byte[], Free>;

Arena make_arena(uint64_t bytes) {
  return Arena(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, bytes)));
}

Bytes random_bytes(size_t n) {
  std::mt19937_64 random(n);
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Extents of odd sizes all over a file of odd size, the last up to its end.
class DirectReaderTest : public ::testing::Test {
 protected:
  DirectReaderTest() : content_(random_bytes(3'000'001)), path_(folder_.write("f", content_)) {
    uint64_t at = 100;
    for (const uint64_t bytes : {4096, 1, 8192, 100'000, 4095, 4097, 1'000'000, 12}) {
      extents_.push_back({0, at, bytes});
      at += bytes + (bytes % 7) * 996;
    }
    extents_.push_back({0, 2'500'000, content_.size() - 2'500'000});
  }

  ReadStats read_and_check(const ArenaLayout& layout, const ReadOptions& options) {
    const Arena arena = make_arena(layout.bytes);
    std::vector<ReadRequest> requests;
    for (size_t i = 0; i < extents_.size(); ++i) {
      requests.push_back(
          {0, extents_[i].offset, {arena.get() + layout.positions[i], extents_[i].bytes}});
    }
    const ReadStats stats = DirectReader({path_}).read(requests, options);
    for (const ReadRequest& r : requests) {
      EXPECT_TRUE(std::ranges::equal(r.destination,
                                     std::span(content_).subspan(r.offset, r.destination.size())));
    }
    return stats;
  }

  TempFolder folder_{std::filesystem::current_path()};  // a disk: /tmp may be tmpfs
  Bytes content_;
  std::filesystem::path path_;
  std::vector<Extent> extents_;
};

TEST_F(DirectReaderTest, CongruentDestinationsAreFilledInPlace) {
  for (const size_t chunk : {4096, 65536, 4 << 20}) {
    ReadOptions options;
    options.chunk_bytes = chunk;
    const ReadStats stats = read_and_check(place_extents(extents_, 1), options);
    EXPECT_EQ(stats.bytes, 4096u + 1 + 8192 + 100'000 + 4095 + 4097 + 1'000'000 + 12 + 500'001);
    if (stats.direct_bytes == 0) GTEST_SKIP() << "no direct reads on this file system";
    EXPECT_EQ(stats.direct_bytes, stats.bytes);
    EXPECT_LE(stats.copied_bytes, extents_.size() * 2 * kDirectAlignment);
  }
}

TEST_F(DirectReaderTest, OtherDestinationsGoThroughStaging) {
  ArenaLayout layout = place_extents(extents_);
  for (uint64_t& position : layout.positions) position += 24;
  layout.bytes += kDirectAlignment;
  for (const size_t chunk : {4096, 65536, 4 << 20}) {
    ReadOptions options;
    options.chunk_bytes = chunk;
    read_and_check(layout, options);
  }
}

TEST_F(DirectReaderTest, BufferedReadsGiveTheSameBytes) {
  ReadOptions options;
  options.direct = false;
  options.threads = 1;
  EXPECT_EQ(read_and_check(place_extents(extents_), options).direct_bytes, 0u);
}

TEST_F(DirectReaderTest, ReportsGrowingProgress) {
  ReadOptions options;
  options.chunk_bytes = 65536;
  uint64_t last = 0;
  options.progress = [&](uint64_t done) {
    EXPECT_GT(done, last);
    last = done;
  };
  const ReadStats stats = read_and_check(place_extents(extents_), options);
  EXPECT_EQ(last, stats.bytes);
}

TEST_F(DirectReaderTest, StopsWhenCancelled) {
  std::atomic<bool> cancel{false};
  ReadOptions options;
  options.chunk_bytes = 4096;
  options.threads = 2;
  options.cancel = &cancel;
  options.progress = [&](uint64_t) { cancel = true; };
  Bytes out(content_.size());
  const ReadRequest request{0, 0, out};
  try {
    DirectReader({path_}).read({&request, 1}, options);
    FAIL() << "was not cancelled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
}

TEST_F(DirectReaderTest, ErrorsNameFileAndOffset) {
  Bytes out(10);
  const DirectReader reader({path_, folder_ / "missing"});
  const ReadRequest past_end{0, content_.size() - 5, out};
  EXPECT_THAT(error_of([&] {
                reader.read({&past_end, 1});
              }),
              HasSubstr("10 bytes at byte 2999996 end past the file's 3000001 bytes"));
  const ReadRequest missing{1, 0, out};
  EXPECT_THAT(error_of([&] { reader.read({&missing, 1}); }), HasSubstr("missing"));
  const ReadRequest unknown{2, 0, out};
  EXPECT_THAT(error_of([&] { reader.read({&unknown, 1}); }), HasSubstr("file 2 of 2"));
  EXPECT_EQ(reader.read({}).bytes, 0u);
}

TEST_F(DirectReaderTest, AThrowingCallbackEndsTheRead) {
  ReadOptions options;
  options.chunk_bytes = 4096;
  options.progress = [](uint64_t) { fail(ErrorCode::kInternal, "enough"); };
  EXPECT_EQ(error_of([&] { read_and_check(place_extents(extents_), options); }), "enough");
}

TEST(PlaceExtentsTest, KeepsResiduesAndDoesNotOverlap) {
  const std::vector<Extent> extents = {
      {0, 10'000, 5000}, {0, 15'000, 96}, {1, 4096, 1}, {0, 15'096, 10'000}, {1, 77, 4000}};
  const ArenaLayout layout = place_extents(extents, 1);
  for (size_t i = 0; i < extents.size(); ++i)
    EXPECT_EQ(layout.positions[i] % kDirectAlignment, extents[i].offset % kDirectAlignment);
  EXPECT_EQ(layout.positions[1], layout.positions[0] + 5000);  // neighbours stay neighbours
  EXPECT_EQ(layout.positions[3], layout.positions[1] + 96);
  EXPECT_LE(layout.bytes, 5000 + 96 + 1 + 10'000 + 4000 + 5 * kDirectAlignment);
}

TEST(PlaceExtentsTest, MisalignedExtentsGetAlignedMemory) {
  const std::vector<Extent> extents = {{0, 1001, 100}, {0, 2004, 8}};
  const ArenaLayout layout = place_extents(extents);
  EXPECT_EQ(layout.positions[0] % 4, 0u);
  EXPECT_EQ(layout.positions[1] % kDirectAlignment, 2004u);
  EXPECT_EQ(place_extents({}).bytes, 0u);
  const std::vector<Extent> huge(3, {0, 0, uint64_t{1} << 62});
  EXPECT_THAT(error_of([&] { place_extents(huge); }), HasSubstr("2^62"));
}

}  // namespace
}  // namespace spillway
