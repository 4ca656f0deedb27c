// SPDX-License-Identifier: Apache-2.0
// Parses a line of a chat: a message, or a command that begins with a slash.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

enum class ChatAction { kNothing, kMessage, kHelp, kClear, kSystem, kSave, kExit, kUnknown };

struct ChatInput {
  ChatAction action = ChatAction::kNothing;
  std::string text;  // the message, the text after a command, or the unknown command
};

// A line "//..." is a message that begins with one slash. Blanks around a command's text are
// dropped; a message keeps its own, but blanks alone are kNothing.
ChatInput parse_chat_input(std::string_view line);

// Returns the text that /help prints.
std::string_view chat_commands_help();

}  // namespace spillway
