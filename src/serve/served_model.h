// SPDX-License-Identifier: Apache-2.0
// What the API needs to know of a loaded model: how text becomes its tokens, and its limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "serve/json_bounds.h"
#include "serve/openai_request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace spillway {

struct EncodedPrompt {
  std::vector<TokenId> ids;
  std::string text;        // as it is echoed
  std::string asked = {};  // of questions_of()
};

// The beginning of what a person asks, of each of a request's prompts: of a conversation the last
// question; "" of token ids. Who predicts how long answers will be goes by it.
std::vector<std::string> questions_of(const OpenAiRequest& request);

// Keeps a pointer to the tokenizer. Immutable, so thread-safe.
class ServedModel {
 public:
  struct Limits {
    int64_t max_sequence_tokens = 0;  // of prompt and answer together
    int64_t vocab_size = 0;           // of the model, whatever its tokenizer has
  };
  // `name` is what answers call it. `tokenizer` may be null: then prompts are ids. Without `chat`
  // there are no conversations.
  ServedModel(std::string name, const Tokenizer* tokenizer, const Limits& limits,
              std::optional<ChatTemplate> chat = std::nullopt);

  const std::string& name() const { return name_; }
  const Tokenizer* tokenizer() const { return tokenizer_; }
  int64_t max_sequence_tokens() const { return limits_.max_sequence_tokens; }
  // Throws ApiError(400) where there is none.
  const Tokenizer& require_tokenizer() const;
  // Of its conversations, as Jinja; null where there are none.
  const std::string* chat_template() const { return chat_ ? &chat_->source() : nullptr; }

  // The request's prompts. Throws ApiError(400) for what this model cannot do: text without a
  // tokenizer, chat without a template.
  std::vector<EncodedPrompt> encode(const OpenAiRequest& request) const;
  // A conversation alone. Throws as encode().
  std::vector<TokenId> encode_chat(const OpenAiRequest& request) const;
  // Limits on bodies, by which what this model has no room for is refused before it is read.
  JsonLimits json_limits() const;
  // Throws ApiError(400) for more bytes of text, or more token ids, than a context can hold: before
  // anybody works on them. `param` is the field at fault.
  void check_bytes(size_t bytes, const char* param) const;
  void check_tokens(size_t tokens, const char* param) const;
  // One of them as the engine takes it; its seed is the caller's. Throws ApiError(400) where there
  // is no room for it, or it names tokens that there are not.
  GenerationRequest to_generation(const OpenAiRequest& request, const EncodedPrompt& prompt) const;

 private:
  void check_ids(const OpenAiRequest& request, const std::vector<TokenId>& prompt) const;

  std::string name_;
  const Tokenizer* tokenizer_;
  std::optional<ChatTemplate> chat_;
  Limits limits_;
  size_t longest_piece_ = 1;  // bytes of a token
};

}  // namespace spillway
