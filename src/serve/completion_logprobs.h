// SPDX-License-Identifier: Apache-2.0
// Log-probabilities as /v1/completions has them: lists of tokens, and where each is in the text.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/generation.h"
#include "text/tokenizer.h"

namespace spillway {

// A token as logprobs show it. What is no whole characters is shown by its bytes: "\xf0\x9f".
// `tokenizer` may be null: "token_id:7".
std::string token_text(TokenId id, const Tokenizer* tokenizer);

// JSON has no infinity; this is what OpenAI writes where a token is next to impossible.
float shown_logprob(float logprob);

// How far in a text its tokens have come, in characters. A character whose bytes are several tokens
// is one; what never becomes a character counts as the U+FFFD that stands for it.
class TextOffset {
 public:
  // Where the character is that `bytes`, the next of the text, begin or go on with.
  size_t advance(std::string_view bytes);
  // What follows begins with a character of its own, as an answer does after its prompt.
  void end_part();

 private:
  size_t characters_ = 0;  // that are complete
  std::string begun_;      // of the next one: at most 3 bytes
};

// The lists of some tokens that follow each other.
class CompletionLogprobs {
 public:
  // `tokenizer` may be null; `offset` is where the tokens before them ended.
  CompletionLogprobs(const Tokenizer* tokenizer, TextOffset& offset)
      : tokenizer_(tokenizer), offset_(offset) {}

  // The next token begins a prompt: its text may lack the space that the token has.
  void begin_prompt() {
    strips_space_ = tokenizer_ != nullptr && tokenizer_->strips_leading_space();
  }
  // `logprobs` null: nothing is said of it.
  void add(TokenId id, const Logprobs* logprobs);
  // {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
  nlohmann::ordered_json take();

 private:
  const Tokenizer* tokenizer_;
  TextOffset& offset_;
  bool strips_space_ = false;
  nlohmann::ordered_json tokens_ = nlohmann::ordered_json::array(), chosen_ = tokens_,
                         tops_ = tokens_, offsets_ = tokens_;
};

}  // namespace spillway
