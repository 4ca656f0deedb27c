// SPDX-License-Identifier: Apache-2.0
// Answers of OpenAI's completion endpoints, and its error objects.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "serve/api_error.h"
#include "serve/openai_request.h"
#include "text/tokenizer.h"

namespace spillway {

// What the engine says about one request, put together.
struct Answer {
  std::string text;
  std::vector<TokenId> ids;        // generated, the end token included
  std::vector<Logprobs> logprobs;  // one for each id, where asked for
  FinishReason finish = FinishReason::kStop;
  std::string error;  // why, when it ended with kError

  // True when this was the last event.
  bool add(const GenerationEvent& event);
};

struct AnswerHead {
  std::string id;       // without prefix: "chatcmpl-" or "cmpl-" comes before it
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint = {};  // system_fingerprint; "": none
};

// A chat.completion or text_completion object. Without a tokenizer (null) there is no text:
// choices have their "token_ids" instead.
nlohmann::ordered_json answer_body(const AnswerHead& head, const OpenAiRequest& request,
                                   size_t prompt_tokens, const Answer& answer,
                                   const Tokenizer* tokenizer);

// {"error": {"message", "type", "param", "code"}}
nlohmann::ordered_json error_body(const ApiError& error);

// One line, valid UTF-8 whatever is in it.
std::string json_line(const nlohmann::ordered_json& value);

}  // namespace spillway
