// SPDX-License-Identifier: Apache-2.0
// The interface of what answers in a chat: a model that is loaded here, or a server.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cli/conversation.h"
#include "engine/generation.h"

namespace spillway {

// An answer and its figures; those that are unknown are empty.
struct ChatAnswer {
  std::string text = {};
  FinishReason finish = FinishReason::kStop;
  size_t tokens = 0;
  bool tokens_are_counted = true;     // false: `tokens` is an estimate
  double decode_s = 0;                // from the first token to the end
  std::optional<double> wait_s = {};  // time to the first token
  std::optional<size_t> prompt_tokens = {};
  std::optional<int64_t> context = {};  // most tokens that a conversation may have
  int64_t reused_tokens = 0;            // prompt tokens whose KV was reused

  bool is_blank() const { return text.find_first_not_of(" \t\r\n") == text.npos; }
};

inline constexpr std::string_view kForgetsTheOldest =
    "the context is full: the oldest question and answer are forgotten";

// Callbacks while an answer is made.
struct AnswerListener {
  std::function<void(std::string_view)> show;  // gets the next text of the answer
  std::function<void(std::string_view)> warn;  // gets warnings of what changes the answer
};

// Not thread-safe.
class AnswerSource {
 public:
  virtual ~AnswerSource() = default;

  // Returns a name to show for the model or server that answers.
  virtual std::string name() const = 0;
  // Returns false if a system message would have no effect.
  virtual bool supports_system_role() const = 0;
  // Returns advice for a full context, besides starting over; "" if there is none.
  virtual std::string_view way_to_more_context() const = 0;

  // Answers the last question. If the context is full, forgets the oldest messages and warns
  // `listener`. An interrupt ends the answer (kCancelled). Throws kInvalidArgument for a question
  // that cannot be answered, and kIo if this answer failed but another one may succeed.
  virtual ChatAnswer answer(Conversation& conversation, const AnswerListener& listener) = 0;
};

}  // namespace spillway
