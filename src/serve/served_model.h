// SPDX-License-Identifier: Apache-2.0
// The API's view of a loaded model: how requests become tokens, and its limits.
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
  std::string text;        // text to echo
  std::string asked = {};  // from questions_of()
};

// Returns the beginning of the question in each of a request's prompts: for a conversation the last
// user message; "" for token ids. Answer lengths are predicted from it.
std::vector<std::string> questions_of(const OpenAiRequest& request);

// Keeps a pointer to the tokenizer. Immutable and thread-safe.
class ServedModel {
 public:
  struct Limits {
    int64_t max_sequence_tokens = 0;  // of prompt and answer together
    int64_t vocab_size = 0;           // of the model, which may differ from its tokenizer's
  };
  // `name` is the model's name in answers. If `tokenizer` is null, prompts must be token ids.
  // Without `chat`, chat requests are refused.
  ServedModel(std::string name, const Tokenizer* tokenizer, const Limits& limits,
              std::optional<ChatTemplate> chat = std::nullopt);

  const std::string& name() const { return name_; }
  const Tokenizer* tokenizer() const { return tokenizer_; }
  int64_t max_sequence_tokens() const { return limits_.max_sequence_tokens; }
  // Throws ApiError(400) if there is no tokenizer.
  const Tokenizer& require_tokenizer() const;
  // Returns the chat template, as Jinja; null if there is none.
  const std::string* chat_template() const { return chat_ ? &chat_->source() : nullptr; }

  // Returns the request's prompts. Throws ApiError(400) for what this model cannot do: text without
  // a tokenizer, chat without a template.
  std::vector<EncodedPrompt> encode(const OpenAiRequest& request) const;
  // Encodes a conversation. Throws as encode() does.
  std::vector<TokenId> encode_chat(const OpenAiRequest& request) const;
  // Returns limits on bodies, so that what exceeds the model's context is refused before it is
  // parsed.
  JsonLimits json_limits() const;
  // These throw ApiError(400) for more bytes of text, or more token ids, than a context can hold,
  // before they are processed. `param` is the field at fault.
  void check_bytes(size_t bytes, const char* param) const;
  void check_tokens(size_t tokens, const char* param) const;
  // Returns the engine's request for a prompt; the caller sets its seed. Throws ApiError(400) if
  // there is no room for it, or if it has token ids outside the vocabulary.
  GenerationRequest to_generation(const OpenAiRequest& request, const EncodedPrompt& prompt) const;

 private:
  void check_ids(const OpenAiRequest& request, const std::vector<TokenId>& prompt) const;

  std::string name_;
  const Tokenizer* tokenizer_;
  std::optional<ChatTemplate> chat_;
  Limits limits_;
  size_t longest_piece_ = 1;  // bytes of the longest token
};

}  // namespace spillway
