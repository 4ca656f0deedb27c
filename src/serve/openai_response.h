// SPDX-License-Identifier: Apache-2.0
// Answers as OpenAI's completion endpoints give them: whole, and as pieces of a stream.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "serve/api_error.h"
#include "serve/completion_logprobs.h"
#include "serve/http/json_text.h"
#include "serve/openai_request.h"
#include "text/tokenizer.h"

namespace spillway {

// What the engine says about one choice, put together.
struct Choice {
  size_t index = 0;
  std::string text;
  std::vector<TokenId> ids;        // generated, the end token included
  std::vector<Logprobs> logprobs;  // one for each id, where asked for
  FinishReason finish = FinishReason::kStop;
  std::string error;                              // why, when it ended with kError
  size_t reused_tokens = 0;                       // of the prompt: found in the cache
  size_t draft_accepted = 0, draft_rejected = 0;  // tokens that were proposed for it
  // Where the prompt is echoed: it, and what was said of its tokens from the second on.
  std::vector<TokenId> prompt_ids;
  std::string prompt_text;
  std::vector<Logprobs> prompt_logprobs;

  // True when this was the last event.
  bool add(const GenerationEvent& event);
};

// "chatcmpl-" or "cmpl-" before a number that no other answer has.
std::string answer_id(OpenAiRoute route, const std::string& number);

struct AnswerHead {
  std::string id;       // whole: answer_id()
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint = {};  // system_fingerprint; "": none
};

struct Usage {
  size_t prompt_tokens = 0, completion_tokens = 0;
  // Of the prompts, found in the cache instead of computed; none: nobody says.
  std::optional<size_t> cached_tokens = {};
  size_t draft_accepted = 0, draft_rejected = 0;  // both 0: nothing is said
};

// A chat.completion or text_completion object. Without a tokenizer (null) there is no text:
// choices have their "token_ids" instead.
nlohmann::ordered_json answer_body(const AnswerHead& head, const OpenAiRequest& request,
                                   const std::vector<Choice>& choices, const Usage& usage,
                                   const Tokenizer* tokenizer);

// The events of a streamed answer ("data: ...", each with its empty line), made without building a
// JSON object for each token. Not thread-safe.
class AnswerStream {
 public:
  // All must outlive it. `prompt_tokens`: of the whole request, for usage with every piece.
  AnswerStream(const AnswerHead& head, const OpenAiRequest& request, const Tokenizer* tokenizer,
               size_t prompt_tokens = 0);

  // Before anything of this choice was said.
  std::string begin(const Choice& choice);
  // What `event`, which was added to the choice before, says; "" where that is nothing yet.
  std::string piece(const Choice& choice, const GenerationEvent& event);
  // After the last choice has ended.
  std::string end(const Usage& usage);
  static std::string error(const ApiError& error);

 private:
  std::string chunk(size_t index, const std::string& delta, const std::string& logprobs,
                    const char* finish) const;
  std::string usage_so_far() const;

  const OpenAiRequest& request_;
  const Tokenizer* tokenizer_;
  bool chat_;
  Usage usage_;                        // so far
  std::string head_;                   // up to the choices
  std::vector<size_t> told_logprobs_;  // of each choice: tokens
  std::vector<TextOffset> offsets_;    // of each choice: behind these
};

}  // namespace spillway
