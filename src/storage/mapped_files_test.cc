// SPDX-License-Identifier: Apache-2.0
#include "storage/mapped_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "storage/file.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

// Each test runs in a process of its own, because the handler belongs to the process.
class MappedFilesDeathTest : public ::testing::Test {
 protected:
  // Reads the last byte of a map after its file was truncated to nothing.
  static int read_lost_byte(const TempFolder& folder) {
    const auto path = folder.write("model.gguf", std::string(1 << 16, 'x'));
    const MappedFile map(path);
    std::filesystem::resize_file(path, 0);
    return static_cast<int>(*static_cast<const volatile std::byte*>(&map.bytes().back()));
  }

  TempFolder folder_;
};

TEST_F(MappedFilesDeathTest, AFileThatIsCutEndsTheProcessWithOneLineThatNamesIt) {
  EXPECT_EXIT(
      {
        end_when_maps_lose_pages("program: ", 1);
        read_lost_byte(folder_);
      },
      ::testing::ExitedWithCode(1), "^program: .*model.gguf lost data[^\n]*\n$");
}

TEST_F(MappedFilesDeathTest, KnowsManyMapsAndForgetsThoseThatEnded) {
  EXPECT_EXIT(
      {
        end_when_maps_lose_pages("program: ", 1);
        auto first = std::make_unique<MappedFile>(folder_.write("first", "first"));
        auto second = std::make_unique<MappedFile>(folder_.write("second", "second"));
        first.reset();
        const MappedFile third(folder_.write("third", "third"));
        second = std::make_unique<MappedFile>(folder_.write("fourth", "fourth"));
        read_lost_byte(folder_);
      },
      ::testing::ExitedWithCode(1), "model.gguf lost data");
}

TEST(MappedFilesTest, AFileThatLostAPartOfItsLastPageIsNoticedAtTheEnd) {
  const TempFolder folder;
  { const MappedFile map(folder.write("whole", "0123456789")); }
  EXPECT_EQ(lost_pages_message(), "");
  {
    const MappedFile map(folder.write("model.gguf", "0123456789"));
    std::filesystem::resize_file(folder / "model.gguf", 5);
    EXPECT_EQ(map.bytes()[7], std::byte{0}) << "no signal comes";
  }
  EXPECT_THAT(lost_pages_message(), ::testing::HasSubstr("model.gguf lost data"));
}

TEST_F(MappedFilesDeathTest, ASignalFromElsewhereDoesWhatItAlwaysDid) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);  // replaces the handler that sanitizers install
        end_when_maps_lose_pages("program: ", 1);
        const MappedFile map(folder_.write("model.gguf", "still whole"));
        ::kill(::getpid(), SIGBUS);
        ::pause();
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace spillway
