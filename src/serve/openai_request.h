// SPDX-License-Identifier: Apache-2.0
// Bodies of OpenAI's completion endpoints as typed requests, checked field by field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/sampling_params.h"
#include "serve/openai_route.h"
#include "serve/request_fields.h"
#include "text/token_id.h"

namespace spillway {

using OpenAiPrompt = std::variant<std::string, std::vector<TokenId>>;

// What was asked for, before any model has been looked at.
struct OpenAiRequest {
  OpenAiRoute route = OpenAiRoute::kCompletions;
  std::string model;  // as the client calls it
  // Chat only, as templates take them: messages, not none, whose contents are strings; tools and
  // further variables, null where there are none.
  nlohmann::ordered_json messages, tools, template_variables;
  std::vector<OpenAiPrompt> prompts;  // completions only; not none
  int choices = 1;                    // of each prompt
  bool echo = false;                  // completions only: answers begin with their prompt
  bool add_special = true;            // completions only: text begins with BOS
  bool add_generation_prompt = true;  // chat only: the template begins an answer
  std::optional<int> max_tokens;      // none: as many as there is room for
  int min_tokens = 0;                 // before them nothing ends the answer
  std::optional<uint64_t> seed;       // in place of sampling.seed; later choices have later ones
  SamplingParams sampling;            // temperature 1 unless given
  std::vector<std::string> stop;
  std::vector<TokenId> stop_ids;  // these end the answer as the model's own end tokens do
  bool ignore_end = false;
  bool stream = false;
  bool stream_usage = false;      // stream_options.include_usage
  bool continuous_usage = false;  // ... with every piece: stream_options.continuous_usage_stats
  int priority = 0;               // lower ones matter more
  std::string user;               // whose share of the server it counts against
  std::vector<std::string> ignored = {};  // fields without effect, as IgnoredFields::take() says
  // KV is shared among requests with the same one; "": as the server has it.
  std::string cache_salt = {};
};

// Besides OpenAI's fields those of vLLM and llama-server are known. One that is known and cannot be
// obeyed is refused, unless its value asks for nothing. One that is not known is ignored and named
// in `ignored`, or refused. Throws ApiError(400) naming the field.
OpenAiRequest parse_openai_request(OpenAiRoute route, const nlohmann::ordered_json& body,
                                   UnknownFields unknown);

// {"content" (or "prompt"), "add_special", "parse_special", "with_pieces"} as llama-server and vLLM
// take it; or a conversation, as vLLM does: {"messages", "add_generation_prompt", "tools",
// "chat_template_kwargs"}.
struct TokenizeRequest {
  std::string content;
  std::optional<OpenAiRequest> chat = {};  // in place of `content`
  bool add_special = false;
  bool parse_special = false;
  bool with_pieces = false;
  std::vector<std::string> ignored = {};
};
TokenizeRequest parse_tokenize_request(const nlohmann::ordered_json& body, UnknownFields unknown);

// {"tokens": [...]}
struct DetokenizeRequest {
  std::vector<TokenId> tokens;
  std::vector<std::string> ignored = {};
};
DetokenizeRequest parse_detokenize_request(const nlohmann::ordered_json& body,
                                           UnknownFields unknown);

}  // namespace spillway
