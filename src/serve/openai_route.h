// SPDX-License-Identifier: Apache-2.0
// The OpenAI completion endpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace spillway {

enum class OpenAiRoute : uint8_t { kChatCompletions, kCompletions };

// Recognizes "/v1/chat/completions" and "/v1/completions".
[[nodiscard]] std::optional<OpenAiRoute> try_openai_route(std::string_view url);

}  // namespace spillway
