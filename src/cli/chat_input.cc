// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_input.h"

#include <utility>

namespace spillway {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

ChatAction action_of(std::string_view command) {
  constexpr std::pair<std::string_view, ChatAction> kCommands[] = {
      {"/help", ChatAction::kHelp},   {"/?", ChatAction::kHelp},
      {"/clear", ChatAction::kClear}, {"/reset", ChatAction::kClear},
      {"/save", ChatAction::kSave},   {"/system", ChatAction::kSystem},
      {"/exit", ChatAction::kExit},   {"/quit", ChatAction::kExit},
  };
  for (const auto& [name, action] : kCommands) {
    if (name == command) return action;
  }
  return ChatAction::kUnknown;
}

}  // namespace

ChatInput parse_chat_input(std::string_view line) {
  if (trimmed(line).empty()) return {};
  if (line.starts_with("//")) return {ChatAction::kMessage, std::string(line.substr(1))};
  if (!line.starts_with('/')) return {ChatAction::kMessage, std::string(line)};
  const std::string_view command = line.substr(0, line.find_first_of(kSpaces));
  const ChatAction action = action_of(command);
  if (action == ChatAction::kUnknown) return {action, std::string(command)};
  return {action, std::string(trimmed(line.substr(command.size())))};
}

std::string_view chat_commands_help() {
  return "/help          this list\n"
         "/clear         forget the conversation (also /reset)\n"
         "/system TEXT   tell the model who it is; alone: what it was told\n"
         "/save FILE     write the conversation: messages as JSON if FILE ends in .json, else "
         "text\n"
         "/exit          leave (also /quit, Ctrl-D, Ctrl-C twice)\n"
         "//TEXT         send /TEXT as a message\n"
         "Enter sends, Alt-Enter begins a new line, pasted text stays together.\n"
         "Ctrl-C stops an answer or clears the line; arrow keys and Ctrl-R bring back earlier "
         "lines.\n";
}

}  // namespace spillway
