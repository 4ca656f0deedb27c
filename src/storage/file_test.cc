// SPDX-License-Identifier: Apache-2.0
#include "storage/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "base/fault_points.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(FileTest, ReadsBytesAtAnOffset) {
  const TempFolder folder;
  const File file(folder.write("a.txt", "hello world"));
  EXPECT_EQ(file.size(), 11u);
  EXPECT_EQ(file.label(), "a.txt");
  std::array<std::byte, 5> out;
  file.read_exact(6, out);
  EXPECT_EQ(text_of(out), "world");
}

TEST(FileTest, ReadingPastTheEndNamesPathAndOffset) {
  const TempFolder folder;
  const File file(folder.write("a.txt", "hello"));
  std::array<std::byte, 5> out;
  EXPECT_THAT(error_of([&] { file.read_exact(3, out); }),
              AllOf(HasSubstr("a.txt"), HasSubstr("at byte 3"), HasSubstr("5 bytes")));
  EXPECT_THAT(error_of([&] { file.read_exact(UINT64_MAX, out); }), HasSubstr("past the file's"));
}

TEST(FileTest, TruncationAfterOpeningIsAnErrorNotAnEndlessLoop) {
  const TempFolder folder;
  const File file(folder.write("a.txt", "hello"));
  std::filesystem::resize_file(file.path(), 2);
  std::array<std::byte, 5> out;
  EXPECT_THAT(error_of([&] { file.read_exact(0, out); }), HasSubstr("truncated while in use"));
}

TEST(FileTest, RefusesWhatIsNotARegularFile) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { File{folder.path()}; }), HasSubstr("a directory"));
  EXPECT_THAT(error_of([] { File{"/dev/null"}; }), HasSubstr("not a regular file"));
  const auto fifo = folder / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { File{fifo}; }), HasSubstr("not a regular file"));
}

TEST(FileTest, AMissingFileIsAnInvalidArgument) {
  try {
    File{"/nonexistent/\n/file"};
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/\\n/file"));
  }
}

TEST(FileTest, MovingLeavesOneOwner) {
  const TempFolder folder;
  File a(folder.write("a.txt", "hello"));
  File b = std::move(a);
  a = File(folder.write("b.txt", "other"));
  b = std::move(a);
  std::array<std::byte, 5> out;
  b.read_exact(0, out);
  EXPECT_EQ(text_of(out), "other");
}

TEST(MappedFileTest, ShowsTheWholeFile) {
  const TempFolder folder;
  MappedFile a(folder.write("a.txt", "hello"));
  EXPECT_TRUE(a.try_populate(0, a.bytes().size()));
  EXPECT_TRUE(a.is_cached(0, a.bytes().size()));
  MappedFile b = std::move(a);
  EXPECT_EQ(text_of(b.bytes()), "hello");
  EXPECT_TRUE(a.bytes().empty());
}

TEST(MappedFileTest, AnEmptyFileHasNoBytes) {
  const TempFolder folder;
  const MappedFile map(folder.write("empty", ""));
  EXPECT_TRUE(map.bytes().empty());
}

TEST(MappedFileTest, KnowsWhatThePageCacheHas) {
  const TempFolder folder(std::filesystem::current_path());  // not a tmpfs: those keep pages
  const auto path = folder.write("f", std::string(3'000'001, 'x'));
  const MappedFile map(path);
  const File file(path);
  ASSERT_EQ(::fsync(file.descriptor()), 0);
  if (::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED) != 0 ||
      map.is_cached(0, map.bytes().size())) {
    GTEST_SKIP() << "this file system keeps its pages";
  }
  EXPECT_TRUE(map.try_populate(1'000'000, 5));
  EXPECT_TRUE(map.is_cached(1'000'000, 5));
  EXPECT_TRUE(map.try_populate(0, map.bytes().size()));
  EXPECT_TRUE(map.is_cached(0, map.bytes().size()));
  EXPECT_TRUE(map.is_cached(2'999'999, 2));
}

TEST(ReadTextFileTest, RefusesMoreThanItIsAllowed) {
  const TempFolder folder;
  const auto path = folder.write("a.txt", "hello");
  EXPECT_EQ(read_text_file(path, 5), "hello");
  EXPECT_THAT(error_of([&] { read_text_file(path, 4); }), HasSubstr("more than the 4"));
}

}  // namespace
}  // namespace spillway
