// SPDX-License-Identifier: Apache-2.0
// Keeps what was typed in chats over sessions.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

// Returns $XDG_STATE_HOME/spillway/chat_history, else that file below ~/.local/state; nullopt if
// neither variable is set.
[[nodiscard]] std::optional<std::filesystem::path> try_history_path();

// A file with one message per line, newlines written as \n and backslashes as \\, readable by its
// owner alone. Concurrent chats append to the same file. Nothing here throws: if the history cannot
// be kept, one warning says so and the chat goes on. Not thread-safe.
class ChatHistory {
 public:
  static constexpr size_t kMaxMessages = 1000;
  // Longer messages are not kept: libedit searches them in quadratic time.
  static constexpr size_t kMaxMessageBytes = size_t{8} << 10;

  // Without a path nothing is read or kept. A file with more than twice kMaxMessages messages, or
  // more than 4 MiB, is cut to the newest ones.
  explicit ChatHistory(std::optional<std::filesystem::path> path);

  // All messages, the newest last.
  const std::vector<std::string>& messages() const { return messages_; }
  // Returns false for a message that is left out: empty, too long, or the same as the last.
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
