// SPDX-License-Identifier: Apache-2.0
// Holds the messages of a conversation, and saves them to files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "text/chat_template.h"

namespace spillway {

class Conversation {
 public:
  // Sets the system message, which holds from the next answer on.
  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }

  // Forgets all but the system message.
  void clear() { messages_.clear(); }
  void add_question(std::string text) { messages_.push_back({"user", std::move(text)}); }
  void add_answer(std::string text) { messages_.push_back({"assistant", std::move(text)}); }
  // Forgets the oldest question and answer; false when only the newest question is left.
  bool forget_oldest();
  size_t size() const { return messages_.size(); }

  // Returns all messages, the system message first.
  std::vector<ChatMessage> messages() const;

  // Writes the messages, as JSON if the name ends in .json, else as text. Replaces an existing file
  // only if save() wrote it. Throws kInvalidArgument or kIo.
  void save(const std::filesystem::path& path);

 private:
  std::string system_;
  std::vector<ChatMessage> messages_;
  std::vector<std::filesystem::path> saved_;
};

}  // namespace spillway
