// SPDX-License-Identifier: Apache-2.0
// Bodies of OpenAI's completion endpoints as typed requests, checked field by field.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/sampling_params.h"
#include "text/chat_template.h"

namespace spillway {

enum class OpenAiRoute : uint8_t { kChatCompletions, kCompletions };

// "/v1/chat/completions" or "/v1/completions".
[[nodiscard]] std::optional<OpenAiRoute> try_openai_route(std::string_view url);

// What was asked for, before any model has been looked at.
struct OpenAiRequest {
  OpenAiRoute route = OpenAiRoute::kCompletions;
  std::string model;                                       // as the client calls it
  std::vector<ChatMessage> messages;                       // chat only; not empty
  std::variant<std::string, std::vector<TokenId>> prompt;  // completions only
  std::optional<int> max_tokens;                           // none: as many as there is room for
  std::optional<uint64_t> seed;                            // in place of sampling.seed
  SamplingParams sampling;                                 // temperature 1 unless given
  std::vector<std::string> stop;
  bool ignore_end = false;
  bool stream = false;
  bool stream_usage = false;  // stream_options.include_usage
};

// One JSON value of at most 64 levels. Throws ApiError(400) saying where it is not JSON.
nlohmann::json parse_json_text(std::string_view text);

// Every field is understood, known to change nothing, or refused: an answer that silently ignores
// half of what was asked is worse than none. Besides OpenAI's fields top_k, min_p,
// repetition_penalty and ignore_eos are known. Throws ApiError(400) naming the field.
OpenAiRequest parse_openai_request(OpenAiRoute route, const nlohmann::json& body);

}  // namespace spillway
