// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_input.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

void expect(std::string_view line, ChatAction action, std::string_view text) {
  const ChatInput input = parse_chat_input(line);
  EXPECT_EQ(static_cast<int>(input.action), static_cast<int>(action)) << line;
  EXPECT_EQ(input.text, text) << line;
}

TEST(ChatInputTest, AMessageStaysAsItIs) {
  expect("Hello there", ChatAction::kMessage, "Hello there");
  expect("  two\nlines ", ChatAction::kMessage, "  two\nlines ");
  expect(" /help", ChatAction::kMessage, " /help");
  expect("", ChatAction::kNothing, "");
  expect(" \t\r\n", ChatAction::kNothing, "");
}

TEST(ChatInputTest, CommandsTakeWhatStandsBehindThem) {
  expect("/help", ChatAction::kHelp, "");
  expect("/clear ", ChatAction::kClear, "");
  expect("/reset", ChatAction::kClear, "");
  expect("/system  Be brief.\nAnd kind. ", ChatAction::kSystem, "Be brief.\nAnd kind.");
  expect("/save my talk.json", ChatAction::kSave, "my talk.json");
  expect("/exit\r", ChatAction::kExit, "");
}

TEST(ChatInputTest, UnknownCommandsAreNamedAndTwoSlashesAreAMessage) {
  expect("/cler now", ChatAction::kUnknown, "/cler");
  expect("/usr/bin", ChatAction::kUnknown, "/usr/bin");
  expect("/CLEAR", ChatAction::kUnknown, "/CLEAR");
  expect("/", ChatAction::kUnknown, "/");
  expect("//usr/bin is a folder", ChatAction::kMessage, "/usr/bin is a folder");
}

}  // namespace
}  // namespace spillway
