// SPDX-License-Identifier: Apache-2.0
#include "storage/zip_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_scoped_folder.h"
#include "storage/test_torch_file.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

ZipDirectory read(std::string_view file) {
  return ZipDirectory(MemorySource("w.bin", std::as_bytes(std::span(file))));
}

std::string error_of_zip(std::string_view file) {
  return error_of([&] { read(file); });
}

std::string content(std::string_view file, std::string_view name) {
  const ZipDirectory zip = read(file);
  const ZipMember* const member = zip.find(name);
  return member == nullptr ? "missing" : std::string(file.substr(member->offset, member->bytes));
}

TestZip two_members(const TestMember& options = {}) {
  TestZip zip;
  zip.add("b/two", "second", options);
  zip.add("b/one", "first", options);
  return zip;
}

// The places of fields in a file of two_members(), whose directory entries have no extra fields.
constexpr size_t kEntryBytes = 46 + 5, kEnd = 22, kLocator = 20 + kEnd, kZip64End = 56 + kLocator;

template <class T>
std::string changed(std::string file, size_t at, T value) {
  TestZip::set_number(file, at, value);
  return file;
}

TEST(ZipDirectoryTest, FindsWhereMembersLie) {
  for (const uint64_t alignment : {1, 64}) {
    for (const bool zip64 : {false, true}) {
      const TestZip zip = two_members({.zip64 = zip64, .alignment = alignment});
      for (const auto& file : {zip.bytes(false), zip.bytes(true), zip.bytes(true, true)}) {
        EXPECT_EQ(content(file, "b/one"), "first");
        EXPECT_EQ(content(file, "b/two"), "second");
        EXPECT_EQ(content(file, "b/on"), "missing");
        EXPECT_EQ(content(file, "c"), "missing");
        EXPECT_EQ(read(file).members().size(), 2u);
        EXPECT_EQ(read(file).members()[0].offset % alignment, 0u);
      }
    }
  }
  EXPECT_TRUE(read(TestZip().bytes(false)).members().empty());
}

TEST(ZipDirectoryTest, RefusesWhatIsNotStored) {
  EXPECT_THAT(error_of_zip(two_members({.method = 8}).bytes()),
              HasSubstr("w.bin: member 'b/two': it is compressed (method 8)"));
  EXPECT_THAT(error_of_zip(two_members({.flags = 0x0809}).bytes()), HasSubstr("it is encrypted"));
  EXPECT_THAT(error_of_zip(two_members({.flags = 0x2000}).bytes()), HasSubstr("flags 0x2000"));
}

TEST(ZipDirectoryTest, RefusesTruncatedFiles) {
  const std::string file = two_members().bytes();
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    EXPECT_THAT(error_of_zip(std::string_view(file).substr(0, bytes)),
                HasSubstr("the file is truncated or damaged"))
        << bytes;
  }
  EXPECT_THAT(error_of_zip(file + "x"), HasSubstr("end record of a zip archive is missing"));
}

TEST(ZipDirectoryTest, RefusesMembersThatOverlap) {
  const std::string file = two_members({.alignment = 1}).bytes(false);
  const size_t entry = file.size() - kEnd - kEntryBytes;  // of the second member
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, entry + 42, 0)),
              HasSubstr("lies inside another member"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, entry + 42, 20)),
              HasSubstr("lies inside another member, which ends at byte 41"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, entry + 42, 3'000'000'000)),
              HasSubstr("reach into the archive's directory"));
  const auto with_size = [&](uint32_t bytes) {
    return changed(changed(file, entry + 20, bytes), entry + 24, bytes);
  };
  EXPECT_EQ(error_of_zip(with_size(5 + 16)), "no error");  // the descriptor behind the bytes
  EXPECT_THAT(error_of_zip(with_size(5 + 16 + 1)), HasSubstr("reach into the archive's directory"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, entry + 20, 3)),
              HasSubstr("a size of 5 and a packed size of 3"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, entry + 24, ~0u)),
              HasSubstr("a large size or offset without a zip64 field"));
}

TEST(ZipDirectoryTest, RefusesMembersWithoutTheirHeaders) {
  EXPECT_THAT(error_of_zip(two_members({.local_name = "b/xxx"}).bytes()),
              HasSubstr("member 'b/two': no header of it at byte 0"));
  const std::string file = two_members().bytes(false);
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, 0, 7)), HasSubstr("no header of it at byte 0"));
  EXPECT_THAT(error_of_zip(changed<uint16_t>(file, 8, 8)), HasSubstr("no header of it at byte 0"));
  EXPECT_THAT(error_of_zip(changed<uint16_t>(file, 28, 60'000)),
              HasSubstr("reach into the archive's directory"));
}

TEST(ZipDirectoryTest, RefusesRepeatedAndOddNames) {
  TestZip twice;
  twice.add("a", "1");
  twice.add("a", "2");
  EXPECT_THAT(error_of_zip(twice.bytes()), HasSubstr("member 'a' is there twice"));
  TestZip unnamed;
  unnamed.add("", "1");
  EXPECT_THAT(error_of_zip(unnamed.bytes()), HasSubstr("a name of 0 bytes"));
  TestZip long_name;
  long_name.add(std::string(1025, 'x'), "1");
  EXPECT_THAT(error_of_zip(long_name.bytes()), HasSubstr("a name of 1025 bytes"));
}

TEST(ZipDirectoryTest, ChecksCountsBeforeAllocating) {
  const std::string file = two_members().bytes(false);
  const std::string wide = two_members().bytes(true, true);
  for (const uint64_t count : {uint64_t{3}, uint64_t{300'000}, uint64_t{1} << 60, UINT64_MAX}) {
    const std::string here = changed(wide, wide.size() - kZip64End + 24, count);
    EXPECT_THAT(error_of_zip(changed(here, wide.size() - kZip64End + 32, count)),
                HasSubstr("at most 262208 are allowed, of at least 46 bytes each"));
  }
  const std::string one = changed<uint16_t>(file, file.size() - kEnd + 8, 1);
  EXPECT_THAT(error_of_zip(changed<uint16_t>(one, file.size() - kEnd + 10, 1)),
              HasSubstr("the archive's directory has another size"));
}

TEST(ZipDirectoryTest, RefusesEndRecordsThatDoNotFit) {
  const std::string file = two_members().bytes();
  const std::string small = two_members().bytes(false);
  const size_t end = file.size() - kEnd, locator = file.size() - kLocator;
  const size_t zip64 = file.size() - kZip64End;
  EXPECT_THAT(error_of_zip(changed<uint16_t>(file, end + 10, 1)), HasSubstr("that disagree"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, end + 16, 5)), HasSubstr("that disagree"));
  EXPECT_THAT(error_of_zip(changed<uint16_t>(file, end + 20, 5)), HasSubstr("a comment"));
  EXPECT_THAT(error_of_zip(changed<uint64_t>(file, locator + 8, 1)), HasSubstr("another place"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, locator + 4, 1)), HasSubstr("several files"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, zip64, 1)), HasSubstr("no zip64 end record"));
  EXPECT_THAT(error_of_zip(changed<uint64_t>(file, zip64 + 4, 45)), HasSubstr("another size"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(file, zip64 + 16, 1)), HasSubstr("several files"));
  EXPECT_THAT(error_of_zip(two_members().bytes(false, true)),
              HasSubstr("no zip64 end record before the end record"));
  const size_t small_end = small.size() - kEnd;
  EXPECT_THAT(error_of_zip(changed<uint16_t>(small, small_end + 4, 1)), HasSubstr("several files"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(small, small_end + 16, 5)),
              HasSubstr("does not end where it should"));
  EXPECT_THAT(error_of_zip(changed<uint32_t>(small, small_end - 2 * kEntryBytes, 7)),
              HasSubstr("member 0: no directory entry"));
}

}  // namespace
}  // namespace spillway
