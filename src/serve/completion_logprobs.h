// SPDX-License-Identifier: Apache-2.0
// Log-probabilities in the format of /v1/completions: lists of tokens and their places in the text.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/generation.h"
#include "text/tokenizer.h"

namespace spillway {

// Returns a token as logprobs show it. A token that is no whole characters is shown by its bytes:
// "\xf0\x9f". `tokenizer` may be null: "token_id:7".
std::string token_text(TokenId id, const Tokenizer* tokenizer);

// Replaces infinity, which JSON lacks, by the number that OpenAI uses for tokens next to
// impossible.
float shown_logprob(float logprob);

// Tracks the places of tokens in a text, in characters. A character whose bytes are several tokens
// counts once; bytes that never become a character count as the U+FFFD that stands for them.
class TextOffset {
 public:
  // Takes the next bytes of the text; returns the index of the character that they begin or
  // continue.
  size_t advance(std::string_view bytes);
  // Makes the following bytes begin a new character, as an answer does after its prompt.
  void end_part();

 private:
  size_t characters_ = 0;  // complete characters so far
  std::string begun_;      // bytes of the next character: at most 3
};

// Builds the lists for consecutive tokens.
class CompletionLogprobs {
 public:
  // `tokenizer` may be null; `offset` is where the tokens before these ended.
  CompletionLogprobs(const Tokenizer* tokenizer, TextOffset& offset)
      : tokenizer_(tokenizer), offset_(offset) {}

  // Call it before the first token of a prompt, whose text may lack the token's leading space.
  void begin_prompt() {
    strips_space_ = tokenizer_ != nullptr && tokenizer_->strips_leading_space();
  }
  // If `logprobs` is null, the token gets no log-probability.
  void add(TokenId id, const Logprobs* logprobs);
  // Returns {"tokens", "token_logprobs", "top_logprobs", "text_offset"}.
  nlohmann::ordered_json take();

 private:
  const Tokenizer* tokenizer_;
  TextOffset& offset_;
  bool strips_space_ = false;
  nlohmann::ordered_json tokens_ = nlohmann::ordered_json::array(), chosen_ = tokens_,
                         tops_ = tokens_, offsets_ = tokens_;
};

}  // namespace spillway
