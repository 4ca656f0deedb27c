// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_route.h"

namespace spillway {

std::optional<OpenAiRoute> try_openai_route(std::string_view url) {
  if (url == "/v1/chat/completions") return OpenAiRoute::kChatCompletions;
  if (url == "/v1/completions") return OpenAiRoute::kCompletions;
  return std::nullopt;
}

}  // namespace spillway
