// SPDX-License-Identifier: Apache-2.0
#include "storage/temporary_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "base/fault_points.h"
#include "storage/file.h"
#include "storage/temporary_name.h"
#include "storage/test_child_process.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TemporaryFileTest : public ::testing::Test {
 protected:
  ~TemporaryFileTest() override { disarm_faults(); }
  TempFolder folder_;
};

TEST_F(TemporaryFileTest, HasNoNameAndTheRoomItAskedFor) {
  const TemporaryFile file({.dir = folder_.path(), .bytes = 3 << 20});
  EXPECT_EQ(file.file().size(), 3u << 20);
  EXPECT_EQ(names_in(folder_.path()), 0u);
  struct stat info {};
  ASSERT_EQ(::fstat(file.file().descriptor(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 3 << 20);
}

TEST_F(TemporaryFileTest, OpensAgainByItsPath) {
  for (const bool keep_name : {false, true}) {
    const TemporaryFile file({.dir = folder_.path(), .bytes = 4096, .keep_name = keep_name});
    file.file().stop_direct();
    const char text[] = "through another descriptor";
    ASSERT_EQ(::pwrite(file.file().descriptor(), text, sizeof text, 0), ssize_t{sizeof text});
    const File again(file.path());
    EXPECT_EQ(again.size(), 4096u);
    char read[sizeof text];
    again.read_exact(0, std::as_writable_bytes(std::span(read)));
    EXPECT_STREQ(read, text);
  }
  EXPECT_EQ(names_in(folder_.path()), 0u) << "the destructor removes a name";
}

TEST_F(TemporaryFileTest, DoesWithoutUnnamedFiles) {
  arm_fault("io.open", 1, FaultKind::kEopnotsupp);
  const TemporaryFile file({.dir = folder_.path(), .bytes = 4096});
  EXPECT_EQ(fault_hits("io.open"), 2u);
  EXPECT_EQ(names_in(folder_.path()), 0u);
  EXPECT_EQ(File(file.path()).size(), 4096u);
}

TEST_F(TemporaryFileTest, RefusesADiskWithoutRoomBeforeWorkBegins) {
  const std::string error = error_of(
      [&] { TemporaryFile file({.dir = folder_.path(), .label = "kv", .bytes = 1ull << 60}); });
  EXPECT_THAT(error, AllOf(HasSubstr("full"), HasSubstr("missing"), HasSubstr("--disk-memory"),
                           HasSubstr(folder_.path().string())));
  EXPECT_EQ(names_in(folder_.path()), 0u);
}

TEST_F(TemporaryFileTest, EveryCallSurvivesEveryFault) {
  for (const bool keep_name : {false, true}) {
    for (const char* point : {"io.open", "io.allocate"}) {
      for (const FaultKind kind : {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr,
                                   FaultKind::kShort, FaultKind::kEopnotsupp}) {
        arm_fault(point, 1, kind);
        try {
          const TemporaryFile file({.dir = folder_.path(), .bytes = 8192, .keep_name = keep_name});
          EXPECT_EQ(file.file().size(), 8192u);
          EXPECT_TRUE(kind != FaultKind::kEio && kind != FaultKind::kEnospc);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kIo);
          EXPECT_THAT(error.what(), HasSubstr(folder_.path().string()));
          EXPECT_NE(kind, FaultKind::kEintr);
        }
        disarm_faults();
        EXPECT_EQ(names_in(folder_.path()), 0u);
      }
    }
  }
}

TEST_F(TemporaryFileTest, NamesAFolderThatIsNone) {
  EXPECT_THAT(error_of([&] { TemporaryFile file({.dir = folder_ / "absent"}); }),
              HasSubstr("--disk-dir"));
}

TEST_F(TemporaryFileTest, AKilledProcessLeavesNothingUnnamed) {
  const pid_t child =
      start_child([&] { static TemporaryFile file({.dir = folder_.path(), .bytes = 1 << 20}); });
  EXPECT_EQ(names_in(folder_.path()), 0u);
  kill_and_wait(child);
  EXPECT_EQ(names_in(folder_.path()), 0u);
}

TEST_F(TemporaryFileTest, WhatAKilledProcessLeftGoesAtTheNextStart) {
  const pid_t child = start_child([&] {
    static TemporaryFile file({.dir = folder_.path(), .bytes = 1 << 20, .keep_name = true});
  });
  EXPECT_EQ(remove_dead_temporary_files(folder_.path()), 0) << "it lives";
  EXPECT_EQ(names_in(folder_.path()), 1u);
  kill_and_wait(child);
  EXPECT_EQ(names_in(folder_.path()), 1u);
  const TemporaryFile next({.dir = folder_.path(), .bytes = 4096});
  EXPECT_EQ(names_in(folder_.path()), 0u);
}

TEST_F(TemporaryFileTest, RemovesOnlyFilesOfTheDead) {
  const uint64_t here = process_instance();
  const int64_t self = ::getpid();
  const uint64_t start = process_start(self);
  ASSERT_NE(start, 0u);
  constexpr int64_t kNoProcess = 4194304;  // above the highest process id
  const std::string dead = temporary_file_name("kv", kNoProcess, 5, here, 0);
  const std::string reused = temporary_file_name("kv", self, start - 1, here, 1);
  const std::string alive = temporary_file_name("kv", self, start, here, 2);
  const std::string other_boot = temporary_file_name("kv", kNoProcess, 5, here + 1, 3);
  const std::string old_boot = temporary_file_name("kv", kNoProcess, 5, here + 1, 4);
  const std::string locked = temporary_file_name("kv", kNoProcess, 5, here, 5);
  const std::vector<std::string> foreign = {
      "model.gguf",
      "spillway-kv.tmp",
      "spillway-kv-1-2-3-4.tmp",
      dead + "x",
      "x" + dead,
      temporary_file_name("kv", kNoProcess, 5, here, 6) + ".tmp",
      "spillway-kv-0" + std::to_string(kNoProcess) + "-5-0000000000000001-0.tmp",
      "spillway-.tmp"};
  for (const auto& name : {dead, reused, alive, other_boot, old_boot, locked}) {
    folder_.write(name, "x");
  }
  for (const auto& name : foreign) folder_.write(name, "x");
  std::filesystem::last_write_time(
      folder_ / old_boot, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  const int lock = ::open((folder_ / locked).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  // A link or folder whose name fits must stay, and so must what the link points to.
  const auto target = folder_.write("precious", "x");
  const std::string link = temporary_file_name("kv", kNoProcess, 5, here, 7);
  std::filesystem::create_symlink(target, folder_ / link);
  const std::string subfolder = temporary_file_name("kv", kNoProcess, 5, here, 8);
  std::filesystem::create_directory(folder_ / subfolder);

  EXPECT_EQ(remove_dead_temporary_files(folder_.path()), 3);
  const auto there = [&](const std::string& name) {
    return std::filesystem::exists(std::filesystem::symlink_status(folder_ / name));
  };
  for (const auto& name : {dead, reused, old_boot}) EXPECT_FALSE(there(name)) << name;
  for (const auto& name : {alive, other_boot, locked, link, subfolder, std::string("precious")}) {
    EXPECT_TRUE(there(name)) << name;
  }
  for (const auto& name : foreign) EXPECT_TRUE(there(name)) << name;
  ::close(lock);
  EXPECT_EQ(remove_dead_temporary_files(folder_ / "absent"), 0);
}

}  // namespace
}  // namespace spillway
