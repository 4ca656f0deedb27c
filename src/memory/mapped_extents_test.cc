// SPDX-License-Identifier: Apache-2.0
#include "memory/mapped_extents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class MappedExtentsTest : public ::testing::Test {
 protected:
  TempFolder folder_;
  std::vector<std::filesystem::path> paths_{folder_.write("a", std::string(100'000, 'a')),
                                            folder_.write("b", std::string(50'000, 'b') + "end")};
  std::vector<Extent> extents_{{1, 49'998, 5}, {0, 33, 60'000}};
};

TEST_F(MappedExtentsTest, AreTheFilesBytesBeforeAndAfterTheyAreDropped) {
  const MappedExtents maps(paths_, extents_);
  uint64_t reported = 0;
  WeightLoadOptions options;
  options.progress = [&](uint64_t done, uint64_t) { reported = done; };
  populate_all(maps, extents_, 2, options);
  EXPECT_EQ(reported, 60'005U);
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(text_of(maps.bytes(extents_[0])), "bbend");
    EXPECT_EQ(text_of(maps.bytes(extents_[1])), std::string(60'000, 'a'));
    EXPECT_TRUE(maps.is_cached(extents_[1]));  // it was just written or touched
    maps.drop(extents_[1]);
  }
}

TEST_F(MappedExtentsTest, OfFilesThatAreTooShortAreAnError) {
  const std::vector<Extent> beyond{{1, 50'000, 4}};
  EXPECT_THAT(error_of([&] { const MappedExtents maps(paths_, beyond); }),
              HasSubstr("b: the file has become shorter"));
}

TEST_F(MappedExtentsTest, OfFilesThatAreTruncatedLaterAreAnErrorToo) {
  void* const page = ::mmap(nullptr, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool system_tells = ::madvise(page, 1, 22) == 0;  // MADV_POPULATE_READ
  ::munmap(page, 1);
  if (!system_tells) GTEST_SKIP() << "Linux before 5.14 raises SIGBUS";
  const MappedExtents maps(paths_, extents_);
  std::filesystem::resize_file(paths_[0], 20'000);
  std::vector<std::byte> scratch(60'000);
  EXPECT_THAT(error_of([&] { maps.read_ahead(extents_[1], scratch); }), HasSubstr("truncated"));
  EXPECT_THAT(error_of([&] { maps.populate(extents_[1]); }),
              HasSubstr("60000 bytes at byte 33 cannot be read"));
}

}  // namespace
}  // namespace spillway
