// SPDX-License-Identifier: Apache-2.0
// Generates one answer with an engine, times it, and describes how it ended.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_client.h"

namespace spillway {

struct Answer {
  std::vector<TokenId> ids;
  std::string text;
  std::vector<Logprobs> logprobs;  // if the request wanted them
  FinishReason finish = FinishReason::kStop;
  std::optional<Error> error;  // with FinishReason::kError
  double first_token_s = 0;    // since the request was submitted
  double total_s = 0;
  int64_t reused_tokens = 0;  // prompt tokens whose KV was reused

  bool is_blank() const;  // nothing but white space
};

// Waits until this request ends; an interrupt cancels it. `show` gets every event. A request that
// fails has its error in the answer; throws only what submit() and `show` throw.
Answer generate(EngineClient& engine, GenerationRequest request,
                const std::function<void(const GenerationEvent&)>& show);

// Returns "20 tokens, 61.3 tokens/s"; a single token has no speed.
std::string describe_speed(const Answer& answer);
std::string describe_speed(size_t tokens, double decode_s);
// Returns why an answer of `tokens` tokens ended before its end, such as "cut at -n 128", or an
// empty string. `context` is the size of the context, of which the prompt took `prompt` tokens.
std::string describe_cut(FinishReason finish, size_t tokens, size_t prompt, int64_t context);

}  // namespace spillway
