// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_encoder.h"

#include <utility>

namespace spillway {

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, ChatTemplate chat)
    : tokenizer_(tokenizer), template_(std::move(chat)) {}

std::vector<TokenId> ChatEncoder::encode(const Conversation& conversation) const {
  const auto segments = template_.render({.messages = messages_to_json(conversation.messages())});
  return tokenizer_.encode_segments(segments, {.add_special = false});
}

}  // namespace spillway
