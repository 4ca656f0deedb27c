// SPDX-License-Identifier: Apache-2.0
// What a line of a chat means: a message, or a command that begins with a slash.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

enum class ChatAction { kNothing, kMessage, kHelp, kClear, kSystem, kSave, kExit, kUnknown };

struct ChatInput {
  ChatAction action = ChatAction::kNothing;
  std::string text;  // the message; what stands behind a command; the unknown command itself
};

// "//..." is a message that begins with one slash. White space around a command's text is dropped,
// a message stays as it is; one of nothing else is kNothing.
ChatInput parse_chat_input(std::string_view line);

// What /help prints.
std::string_view chat_commands_help();

}  // namespace spillway
