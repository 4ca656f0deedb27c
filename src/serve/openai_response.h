// SPDX-License-Identifier: Apache-2.0
// Formats answers of OpenAI's completion endpoints, complete or as the chunks of a stream.
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

// The result of one choice, collected from the engine's events.
struct Choice {
  size_t index = 0;
  std::string text;
  std::vector<TokenId> ids;        // generated tokens, the end token included
  std::vector<Logprobs> logprobs;  // one for each id, if requested
  FinishReason finish = FinishReason::kStop;
  std::string error;                              // the reason if it ended with kError
  size_t reused_tokens = 0;                       // prompt tokens whose KV was reused
  size_t draft_accepted = 0, draft_rejected = 0;  // draft tokens
  // If the prompt is echoed: the prompt, and the logprobs of its tokens from the second on.
  std::vector<TokenId> prompt_ids;
  std::string prompt_text;
  std::vector<Logprobs> prompt_logprobs;

  // Adds an event; returns true if it was the last one.
  bool add(const GenerationEvent& event);
};

// Returns "chatcmpl-" or "cmpl-" followed by `number`, which must be unique.
std::string answer_id(OpenAiRoute route, const std::string& number);

struct AnswerHead {
  std::string id;       // from answer_id()
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint = {};  // system_fingerprint; "": none
};

struct Usage {
  size_t prompt_tokens = 0, completion_tokens = 0;
  // Tokens of the prompts that were found in the cache; nullopt: not reported.
  std::optional<size_t> cached_tokens = {};
  size_t draft_accepted = 0, draft_rejected = 0;  // not reported if both are 0
};

// Returns a chat.completion or text_completion object. Without a tokenizer (null) there is no text,
// and choices have "token_ids" instead.
nlohmann::ordered_json answer_body(const AnswerHead& head, const OpenAiRequest& request,
                                   const std::vector<Choice>& choices, const Usage& usage,
                                   const Tokenizer* tokenizer);

// Formats the events of a streamed answer ("data: ...", each with its empty line) without building
// a JSON object for each token. Not thread-safe.
class AnswerStream {
 public:
  // All arguments must outlive it. `prompt_tokens` counts the whole request's, for continuous
  // usage.
  AnswerStream(const AnswerHead& head, const OpenAiRequest& request, const Tokenizer* tokenizer,
               size_t prompt_tokens = 0);

  // Returns a choice's first events, which come before all its text.
  std::string begin(const Choice& choice);
  // Returns the events for `event`, which must have been added to `choice`; "" if there are none
  // yet.
  std::string piece(const Choice& choice, const GenerationEvent& event);
  // Returns the end of the stream, after the last choice has ended.
  std::string end(const Usage& usage);
  static std::string error(const ApiError& error);

 private:
  std::string chunk(size_t index, const std::string& delta, const std::string& logprobs,
                    const char* finish) const;
  std::string usage_so_far() const;

  const OpenAiRequest& request_;
  const Tokenizer* tokenizer_;
  bool chat_;
  Usage usage_;                        // usage so far
  std::string head_;                   // the start of every event, up to the choices
  std::vector<size_t> told_logprobs_;  // tokens of each choice whose logprobs were sent
  std::vector<TextOffset> offsets_;    // text offset of each choice after these tokens
};

}  // namespace spillway
