// SPDX-License-Identifier: Apache-2.0
#include "storage/file_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/fault_points.h"
#include "storage/file.h"
#include "storage/temporary_name.h"
#include "storage/test_child_process.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

TEST(FileWriterTest, NothingStaysWithoutCommit) {
  const TempFolder folder;
  folder.write("a.txt", "old");
  {
    FileWriter writer(folder / "a.txt");
    writer.write("half");
  }
  EXPECT_EQ(read_text_file(folder / "a.txt", 100), "old");
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  EXPECT_THAT(error_of([&] { FileWriter{folder / "missing/a.txt"}; }), HasSubstr("cannot create"));
}

// Injects every kind of fault into every call in turn: the file has all of its bytes, or its name
// never appears.
TEST(FileWriterTest, EveryCallSurvivesEveryFault) {
  for (const char* point : {"io.open", "io.write", "io.sync", "io.link", "io.rename"}) {
    for (const FaultKind kind :
         {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr, FaultKind::kShort}) {
      for (uint64_t nth = 1; nth <= 3; ++nth) {
        const TempFolder folder;
        arm_fault(point, nth, kind);
        try {
          FileWriter writer(folder / "f");
          writer.write("0123456789");
          writer.write("abcdef");
          writer.commit();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kIo);
          EXPECT_NE(kind, FaultKind::kShort);
        }
        disarm_faults();
        if (std::filesystem::exists(folder / "f")) {
          EXPECT_EQ(read_text_file(folder / "f", 100), "0123456789abcdef");
        } else {
          EXPECT_NE(kind, FaultKind::kShort);
          EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
        }
      }
    }
  }
}

TEST(FileWriterTest, AKilledProcessLeavesNothing) {
  const TempFolder folder;
  folder.write("a.txt", "old");
  const pid_t child = start_child([&] {
    static FileWriter writer(folder / "a.txt");
    writer.write("half");
  });
  EXPECT_EQ(names_in(folder.path()), 1u) << "it has no name yet";
  kill_and_wait(child);
  EXPECT_EQ(names_in(folder.path()), 1u);
  EXPECT_EQ(read_text_file(folder / "a.txt", 100), "old");
}

TEST(FileWriterTest, WithoutUnnamedFilesTheNextOneRemovesWhatAKilledProcessLeft) {
  const TempFolder folder;
  const pid_t child = start_child([&] {
    arm_fault("io.open", 1, FaultKind::kEopnotsupp);
    static FileWriter writer(folder / "a.txt");
    writer.write("half");
  });
  EXPECT_EQ(remove_dead_temporary_files(folder.path()), 0) << "it lives";
  EXPECT_EQ(names_in(folder.path()), 1u);
  kill_and_wait(child);
  EXPECT_EQ(names_in(folder.path()), 1u);
  FileWriter next(folder / "b.txt");
  EXPECT_EQ(names_in(folder.path()), 0u);
}

TEST(FileWriterTest, WithoutUnnamedFilesTheFileIsWholeOrAbsent) {
  const TempFolder folder;
  for (const bool commit : {false, true}) {
    arm_fault("io.open", 1, FaultKind::kEopnotsupp);
    {
      FileWriter writer(folder / "a.txt");
      disarm_faults();
      writer.write("all of it");
      if (commit) writer.commit();
    }
    EXPECT_EQ(names_in(folder.path()), commit ? 1u : 0u);
  }
  EXPECT_EQ(read_text_file(folder / "a.txt", 100), "all of it");
}

TEST(FileWriterTest, ReplacesTheFileThatALinkNames) {
  const TempFolder folder;
  folder.write("file", "old");
  std::filesystem::create_symlink("file", folder / "link");
  FileWriter writer(folder / "link");
  writer.write("new");
  writer.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_text_file(folder / "file", 100), "new");
}

TEST(FileWriterTest, NeverReplacesAFolderOrADevice) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { FileWriter{folder.path()}; }), HasSubstr("a folder"));
  std::filesystem::create_symlink("/dev/null", folder / "null");
  EXPECT_THAT(error_of([&] { FileWriter{folder / "null"}; }), HasSubstr("a device"));
}

}  // namespace
}  // namespace spillway
