// SPDX-License-Identifier: Apache-2.0
// Renders a conversation as a prompt for a model that is loaded here.
#pragma once

#include <vector>

#include "cli/conversation.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace spillway {

// The tokenizer must outlive it.
class ChatEncoder {
 public:
  ChatEncoder(const Tokenizer& tokenizer, ChatTemplate chat);

  // Returns false if the template has no place for a system message.
  bool supports_system_role() const { return template_.supports_system_role(); }
  // Returns the tokens of a prompt for the next answer.
  std::vector<TokenId> encode(const Conversation& conversation) const;

 private:
  const Tokenizer& tokenizer_;
  ChatTemplate template_;
};

}  // namespace spillway
