// SPDX-License-Identifier: Apache-2.0
// Parses bodies of OpenAI's completion endpoints into typed requests, checking every field.
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

// A request as the client sent it, not yet checked against a model.
struct OpenAiRequest {
  OpenAiRoute route = OpenAiRoute::kCompletions;
  std::string model;  // as the client calls it
  // For chat only, in the form that templates take: at least one message, with string contents;
  // tools and further variables, which are null if there are none.
  nlohmann::ordered_json messages, tools, template_variables;
  std::vector<OpenAiPrompt> prompts;  // completions only; at least one
  int choices = 1;                    // number of choices for each prompt
  bool echo = false;                  // completions only: answers begin with their prompt
  bool add_special = true;            // completions only: a text prompt begins with BOS
  bool add_generation_prompt = true;  // chat only: the template begins an answer
  std::optional<int> max_tokens;      // nullopt: as many as there is room for
  int min_tokens = 0;                 // the answer does not end before it has these
  std::optional<uint64_t> seed;       // replaces sampling.seed; choice i uses this + i
  SamplingParams sampling;            // temperature 1 unless given
  std::vector<std::string> stop;
  std::vector<TokenId> stop_ids;  // end the answer as the model's own end tokens do
  bool ignore_end = false;
  bool stream = false;
  bool stream_usage = false;              // stream_options.include_usage
  bool continuous_usage = false;          // with every chunk: stream_options.continuous_usage_stats
  int priority = 0;                       // lower values go first
  std::string user;                       // end user, for fair sharing within a client
  std::vector<std::string> ignored = {};  // fields without effect (IgnoredFields::take())
  // KV is shared only among requests with the same salt; "": the server's default sharing.
  std::string cache_salt = {};
};

// Besides OpenAI's fields, those of vLLM and llama-server are known. A known field that is not
// supported is refused, unless its value is neutral. An unknown field is ignored and named in
// `ignored`, or refused. Throws ApiError(400) naming the field.
OpenAiRequest parse_openai_request(OpenAiRoute route, const nlohmann::ordered_json& body,
                                   UnknownFields unknown);

// A body {"content" (or "prompt"), "add_special", "parse_special", "with_pieces"} as llama-server
// and vLLM take it, or a conversation, as vLLM does: {"messages", "add_generation_prompt", "tools",
// "chat_template_kwargs"}.
struct TokenizeRequest {
  std::string content;
  std::optional<OpenAiRequest> chat = {};  // instead of `content`
  bool add_special = false;
  bool parse_special = false;
  bool with_pieces = false;
  std::vector<std::string> ignored = {};
};
TokenizeRequest parse_tokenize_request(const nlohmann::ordered_json& body, UnknownFields unknown);

// A body {"tokens": [...]}.
struct DetokenizeRequest {
  std::vector<TokenId> tokens;
  std::vector<std::string> ignored = {};
};
DetokenizeRequest parse_detokenize_request(const nlohmann::ordered_json& body,
                                           UnknownFields unknown);

}  // namespace spillway
