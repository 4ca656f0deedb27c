// SPDX-License-Identifier: Apache-2.0
// Lists well-known chat formats, for models that come without a chat template.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

struct ChatStyle {
  std::string_view name;   // chatml, llama-2, llama-3, zephyr, phi-3
  std::string_view jinja;  // the chat template
  // The control tokens that mark turns; a vocabulary needs them for this style. Empty if turns are
  // marked by plain text.
  std::span<const std::string_view> tokens;
};

std::span<const ChatStyle> chat_styles();
// Finds a style, ignoring case and hyphens; returns nullptr for unknown names.
[[nodiscard]] const ChatStyle* try_chat_style(std::string_view name);
// Returns all names for a message: "chatml, llama-2, ... and phi-3".
std::string chat_style_names();

}  // namespace spillway
