// SPDX-License-Identifier: Apache-2.0
// Builds and parses the messages between a chat and an OpenAI-compatible server. Servers are not
// trusted: whatever they send can only lead to an error.
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

// The kind of server, as far as the fields of a request depend on it.
enum class ServerKind : uint8_t {
  kOther,
  kLlamaServer,  // has its own names for some fields
  kSpillway,     // has a field for every flag
};

// An entry of GET /v1/models.
struct ServerModel {
  std::string id;
  std::optional<int64_t> context = {};  // in tokens, if the server tells
  ServerKind kind = ServerKind::kOther;
};
// Returns the models that a server lists in `body`. Throws kIo if it is not a list of models.
std::vector<ServerModel> parse_model_list(std::string_view body);

// Returns the given flags as fields of a request; the seed is left out. Throws kInvalidArgument for
// a flag that this server has no field for.
nlohmann::ordered_json sampling_fields(const SamplingOptions& options, ServerKind server);
// Returns the given flags that OpenAI's own API lacks, such as "--top-k, --min-p".
std::string unusual_flags(const SamplingOptions& options);

// One event of a streamed answer.
struct ServerEvent {
  std::string text;       // text of the answer
  bool is_piece = false;  // true for about one token, of the answer or of the reasoning before it
  std::optional<FinishReason> finish;
  std::optional<size_t> prompt_tokens, completion_tokens;
  std::optional<size_t> cached_tokens;  // prompt tokens whose KV was reused
  std::string error;                    // why the server gave up; "": it did not
};
// Reads the data of an event of a streamed answer. Throws kIo if it is something else.
ServerEvent parse_server_event(std::string_view data);

// A response with a status that is not success.
struct ServerRefusal {
  int status = 0;
  std::string message = {};  // a single line
  bool context_is_full = false;
};
// `body` may be anything.
ServerRefusal parse_refusal(int status, std::string_view body);

}  // namespace spillway
