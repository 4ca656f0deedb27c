// SPDX-License-Identifier: Apache-2.0
// What was typed in chats before, kept over sessions.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

// $XDG_STATE_HOME/spillway/chat_history, or that in ~/.local/state; nullopt where neither variable
// is set.
[[nodiscard]] std::optional<std::filesystem::path> try_history_path();

// A file with a message on each line, newlines written as \n and backslashes as \\; readable by its
// owner alone. Chats that run at the same time add to the same file. Nothing here throws: a history
// that cannot be kept is no reason not to talk, and is said once as a warning. Not thread-safe.
class ChatHistory {
 public:
  static constexpr size_t kMaxMessages = 1000;
  // Longer ones are not kept: searching through them takes libedit a time that grows with the
  // square.
  static constexpr size_t kMaxMessageBytes = size_t{8} << 10;

  // Without a path nothing is read or kept. A file of more than twice as many messages, or more
  // than 4 MiB, is cut to the newest.
  explicit ChatHistory(std::optional<std::filesystem::path> path);

  // The newest is last.
  const std::vector<std::string>& messages() const { return messages_; }
  // False for what is left out: nothing, what is too long, or the same as the last.
  bool add(const std::string& message);

 private:
  void load();
  void append(const std::string& message);
  void rewrite();
  void give_up(const char* what);

  std::optional<std::filesystem::path> path_;
  std::vector<std::string> messages_;
};

}  // namespace spillway
