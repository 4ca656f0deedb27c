// SPDX-License-Identifier: Apache-2.0
// A conversation: its messages, how they become tokens, and how they are saved.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace spillway {

// The tokenizer must outlive it.
class Conversation {
 public:
  Conversation(const Tokenizer& tokenizer, ChatTemplate chat);

  // What the model is told before the conversation, from the next encode() on.
  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }
  // False where the template has no place for it.
  bool takes_system() const { return template_.takes_system(); }

  // Forgets all but the system message.
  void clear() { messages_.clear(); }
  void add_question(std::string text) { messages_.push_back({"user", std::move(text)}); }
  void add_answer(std::string text) { messages_.push_back({"assistant", std::move(text)}); }
  void drop_last() { messages_.pop_back(); }
  // Forgets the oldest question and answer; false when only the newest question is left.
  bool forget_oldest();
  size_t size() const { return messages_.size(); }

  // As a prompt for the next answer.
  std::vector<TokenId> encode() const;

  // Messages as JSON where the name ends in .json, else text. A file that is there is not replaced,
  // unless it is one that save() wrote. Throws kInvalidArgument or kIo.
  void save(const std::filesystem::path& path);

 private:
  std::vector<ChatMessage> with_system() const;

  const Tokenizer& tokenizer_;
  ChatTemplate template_;
  std::string system_;
  std::vector<ChatMessage> messages_;
  std::vector<std::filesystem::path> saved_;
};

}  // namespace spillway
