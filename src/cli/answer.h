// SPDX-License-Identifier: Apache-2.0
// One answer of an engine: generated to its end, timed, and described.
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
  std::vector<Logprobs> logprobs;  // where they were asked for
  FinishReason finish = FinishReason::kStop;
  std::optional<Error> error;  // with FinishReason::kError
  double first_token_s = 0;    // after it was asked for
  double total_s = 0;
  int64_t reused_tokens = 0;  // of the prompt: not computed again

  bool is_blank() const;  // nothing but white space
};

// Waits until this request ends; an interrupt cancels it. `show` sees every event. Throws what the
// step that it was part of threw.
Answer generate(EngineClient& engine, GenerationRequest request,
                const std::function<void(const GenerationEvent&)>& show);

// "20 tokens, 61.3 tokens/s"; one token has no speed.
std::string describe_speed(const Answer& answer);
std::string describe_speed(size_t tokens, double decode_s);
// Why an answer of so many tokens ended, where that was not its end: "cut at -n 128"; else empty.
// `context` is how many tokens there was room for, `prompt` how many of them the prompt took.
std::string describe_cut(FinishReason finish, size_t tokens, size_t prompt, int64_t context);

}  // namespace spillway
