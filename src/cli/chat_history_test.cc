// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/test_scoped_folder.h"

namespace spillway {
namespace {

using testing::ElementsAre;

struct Folder : ScopedFolder {
  Folder() : ScopedFolder(std::filesystem::temp_directory_path()) {}
};

int mode_of(const std::filesystem::path& path) {
  struct stat status = {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return static_cast<int>(status.st_mode & 0777);
}

TEST(ChatHistoryTest, KeepsMessagesOfAnyKindOverSessions) {
  const Folder folder;
  const auto path = folder / "state/spillway/chat_history";
  ChatHistory first(path);
  first.add("one");
  first.add("two\nlines, a \\ and a \\n");
  EXPECT_FALSE(first.add(""));
  EXPECT_TRUE(first.add("caf\xC3\xA9"));
  EXPECT_FALSE(first.add("caf\xC3\xA9"));
  EXPECT_THAT(ChatHistory(path).messages(),
              ElementsAre("one", "two\nlines, a \\ and a \\n", "caf\xC3\xA9"));
}

TEST(ChatHistoryTest, IsForItsOwnerAlone) {
  const Folder folder;
  const auto path = folder / "state/spillway/chat_history";
  ChatHistory(path).add("secret");
  EXPECT_EQ(mode_of(path), 0600);
  EXPECT_EQ(mode_of(path.parent_path()), 0700);
  chmod(path.c_str(), 0644);
  ChatHistory(path).add("another");
  EXPECT_EQ(mode_of(path), 0600);
}

TEST(ChatHistoryTest, TwoChatsAtOnceLoseNothing) {
  const Folder folder;
  const auto path = folder / "history";
  ChatHistory one(path);
  ChatHistory other(path);
  one.add("a");
  other.add("b");
  one.add("c");
  EXPECT_THAT(ChatHistory(path).messages(), ElementsAre("a", "b", "c"));
}

TEST(ChatHistoryTest, IsBounded) {
  const Folder folder;
  const auto path = folder / "history";
  {
    std::ofstream file(path);
    for (int i = 0; i < 5000; ++i) file << "message " << i << "\n";
  }
  const ChatHistory history(path);
  ASSERT_EQ(history.messages().size(), ChatHistory::kMaxMessages);
  EXPECT_EQ(history.messages().back(), "message 4999");
  EXPECT_LT(std::filesystem::file_size(path), 1000 * 20U) << "the file is cut, too";
  EXPECT_EQ(mode_of(path), 0600);
  EXPECT_EQ(ChatHistory(path).messages(), history.messages());
}

TEST(ChatHistoryTest, ReadsTheEndOfAHugeFile) {
  const Folder folder;
  const auto path = folder / "history";
  {
    std::ofstream file(path);
    for (int i = 0; i < 200; ++i) file << std::string(60000, 'x') << i << "\n";
    file << "last\n";
  }
  EXPECT_EQ(ChatHistory(path).messages().back(), "last");
  EXPECT_LE(std::filesystem::file_size(path), size_t{4} << 20);
}

TEST(ChatHistoryTest, AMessageThatIsTooLongIsNotKept) {
  const Folder folder;
  const auto path = folder / "history";
  ChatHistory history(path);
  EXPECT_FALSE(history.add(std::string(ChatHistory::kMaxMessageBytes + 1, 'x')));
  EXPECT_TRUE(history.add("short"));
  EXPECT_THAT(ChatHistory(path).messages(), ElementsAre("short"));
}

TEST(ChatHistoryTest, WhatCannotBeKeptIsNoError) {
  const Folder folder;
  ChatHistory history(folder.path());  // the path is a folder, which cannot be written
  history.add("a");
  EXPECT_THAT(history.messages(), ElementsAre("a"));
  ChatHistory nowhere(std::nullopt);
  nowhere.add("a");
  EXPECT_THAT(nowhere.messages(), ElementsAre("a"));
}

}  // namespace
}  // namespace spillway
