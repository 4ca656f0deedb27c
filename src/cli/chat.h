// SPDX-License-Identifier: Apache-2.0
// A talk: lines that are messages or commands, and answers to them.
#pragma once

#include <string>
#include <string_view>

#include "cli/answer_source.h"
#include "cli/conversation.h"

namespace spillway {

// The talk itself. What is wrong with a line throws kInvalidArgument, or kIo if it cannot be saved
// or answered now, and leaves the conversation as it was.
class Chat {
 public:
  // `source` must outlive it; it is told `system` before anything else. `max_tokens` is what an
  // answer was limited to.
  Chat(AnswerSource& source, const std::string& system, int max_tokens, bool interactive);

  // Does what a line says; false when it ends the talk.
  bool take(const std::string& line);

 private:
  // For the person at the terminal; others have no use for it.
  void note(std::string_view text) const;
  // What changes answers is said in pipes, too.
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

// Talks until the person leaves, on a terminal or, line by line, in a pipe. Returns the exit code.
int talk(AnswerSource& source, const std::string& system, int max_tokens);

}  // namespace spillway
