// SPDX-License-Identifier: Apache-2.0
// Who answers in a chat: a model that is loaded here, or a server.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cli/conversation.h"
#include "engine/generation.h"

namespace spillway {

// An answer and its figures, as far as they are known.
struct ChatAnswer {
  std::string text = {};
  FinishReason finish = FinishReason::kStop;
  size_t tokens = 0;
  bool tokens_are_counted = true;     // false: `tokens` is about right
  double decode_s = 0;                // from the first token to the end
  std::optional<double> wait_s = {};  // for the first token
  std::optional<size_t> prompt_tokens = {};
  std::optional<int64_t> context = {};  // tokens that a conversation may have
  int64_t reused_tokens = 0;            // of the prompt: not computed again

  bool is_blank() const { return text.find_first_not_of(" \t\r\n") == text.npos; }
};

inline constexpr std::string_view kForgetsTheOldest =
    "the context is full: the oldest question and answer are forgotten";

// What happens while an answer is made.
struct AnswerListener {
  std::function<void(std::string_view)> show;  // the next piece of the text
  std::function<void(std::string_view)> warn;  // what changes the answer
};

// Not thread-safe.
class AnswerSource {
 public:
  virtual ~AnswerSource() = default;

  // Whom one talks to, for people.
  virtual std::string name() const = 0;
  // False where a system message would not be heard.
  virtual bool takes_system() const = 0;
  // What to do when the context is full, besides starting over; "" for nothing.
  virtual std::string_view way_to_more_context() const = 0;

  // Answers the last question. Where the context is full, the oldest messages are forgotten, and
  // `listener` is warned. An interrupt ends the answer (kCancelled). Throws kInvalidArgument for a
  // question that cannot be answered, kIo where another could be.
  virtual ChatAnswer answer(Conversation& conversation, const AnswerListener& listener) = 0;
};

}  // namespace spillway
