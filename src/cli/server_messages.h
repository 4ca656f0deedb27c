// SPDX-License-Identifier: Apache-2.0
// What a chat and an OpenAI-compatible server say to each other. Servers are not trusted: what they
// say is taken apart here, and nothing they may say does more than fail.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/sampling_options.h"
#include "engine/generation.h"

namespace spillway {

// Who answers, as far as the fields of a request depend on it.
enum class ServerKind : uint8_t {
  kOther,
  kLlamaServer,  // has names of its own for some fields
  kSpillway,     // has a field for every flag
};

// Of GET /v1/models.
struct ServerModel {
  std::string id;
  std::optional<int64_t> context = {};  // tokens, where the server tells
  ServerKind kind = ServerKind::kOther;
};
// Throws kIo for what is no such list.
std::vector<ServerModel> parse_model_list(std::string_view body);

// The flags that were given, as fields of a request; the seed is left out. Throws kInvalidArgument
// for one that this server has no field for.
nlohmann::ordered_json sampling_fields(const SamplingOptions& options, ServerKind server);
// Of these, the flags that OpenAI's own API does not have: "--top-k, --min-p".
std::string unusual_flags(const SamplingOptions& options);

// One event of a streamed answer.
struct ServerEvent {
  std::string text;       // of the answer
  bool is_piece = false;  // about one token, of the answer or of the thoughts before it
  std::optional<FinishReason> finish;
  std::optional<size_t> prompt_tokens, completion_tokens;
  std::optional<size_t> cached_tokens;  // of the prompt: not computed again
  std::string error;                    // why the server gives up; "": it does not
};
// Throws kIo for what is none.
ServerEvent parse_server_event(std::string_view data);

// An answer that is no success.
struct ServerRefusal {
  int status = 0;
  std::string message = {};  // one line
  bool context_is_full = false;
};
// `body` may be anything.
ServerRefusal parse_refusal(int status, std::string_view body);

}  // namespace spillway
