// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "serve/api_error.h"
#include "serve/bounded_json.h"
#include "serve/openai_request.h"
#include "serve/openai_response.h"
#include "tests/fuzz/fuzz_targets.h"

namespace spillway {
namespace {

// Expects the body to be taken, or refused with a 400 that can be sent.
template <class Parse>
void expect_taken_or_refused(const Parse& parse) {
  try {
    parse();
  } catch (const ApiError& error) {
    SPW_ASSERT(error.status() == 400);
    SPW_ASSERT(nlohmann::json::accept(json_line(error_body(error))));
  }
}

}  // namespace

void fuzz_api_request(std::string_view bytes) {
  expect_taken_or_refused([&] {
    const nlohmann::ordered_json body = parse_json_text(bytes);
    for (const UnknownFields unknown : {UnknownFields::kIgnore, UnknownFields::kRefuse}) {
      for (const OpenAiRoute route : {OpenAiRoute::kCompletions, OpenAiRoute::kChatCompletions}) {
        expect_taken_or_refused([&] {
          const OpenAiRequest request = parse_openai_request(route, body, unknown);
          SPW_ASSERT(request.choices >= 1 && request.max_tokens.value_or(0) >= 0);
          SPW_ASSERT(request.min_tokens >= 0 && request.sampling.repetition_window >= 0);
          SPW_ASSERT(unknown == UnknownFields::kIgnore || request.ignored.empty());
          SPW_ASSERT(route == OpenAiRoute::kCompletions ? !request.prompts.empty()
                                                        : !request.messages.empty());
        });
      }
      expect_taken_or_refused([&] { parse_tokenize_request(body, unknown); });
      expect_taken_or_refused([&] { parse_detokenize_request(body, unknown); });
    }
  });
}

}  // namespace spillway
