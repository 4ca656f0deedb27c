// SPDX-License-Identifier: Apache-2.0
// Which of OpenAI's completion endpoints a request is for.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace spillway {

enum class OpenAiRoute : uint8_t { kChatCompletions, kCompletions };

// "/v1/chat/completions" or "/v1/completions".
[[nodiscard]] std::optional<OpenAiRoute> try_openai_route(std::string_view url);

}  // namespace spillway
