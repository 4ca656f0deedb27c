// SPDX-License-Identifier: Apache-2.0
// A chat: reads lines that are messages or commands, and shows answers.
#pragma once

#include <string>
#include <string_view>

#include "cli/answer_source.h"
#include "cli/conversation.h"

namespace spillway {

// Holds the conversation. take() throws kInvalidArgument for a bad line, and kIo for one that
// cannot be saved or answered now; both leave the conversation as it was.
class Chat {
 public:
  // `source` must outlive it. `system` is the first system message. `max_tokens` is the limit of an
  // answer.
  Chat(AnswerSource& source, const std::string& system, int max_tokens, bool interactive);

  // Executes a line; returns false if it ends the chat.
  bool take(const std::string& line);

 private:
  // Prints a note at a terminal; pipes do not get it.
  void note(std::string_view text) const;
  // Prints a warning that the answer is affected; pipes get it, too.
  void warn(std::string_view text) const;
  void set_system(const std::string& text);
  void answer(const std::string& message);
  ChatAnswer ask();
  void report(const ChatAnswer& answer) const;

  AnswerSource& source_;
  Conversation conversation_;
  int max_tokens_;
  bool interactive_;
};

// Chats until the user leaves, at a terminal or, line by line, in a pipe. Returns the exit code.
int talk(AnswerSource& source, const std::string& system, int max_tokens);

}  // namespace spillway
