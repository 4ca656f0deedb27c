// SPDX-License-Identifier: Apache-2.0
// Well-known ways to write a conversation down, for models that bring no template.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

struct ChatStyle {
  std::string_view name;   // chatml, llama-2, llama-3, zephyr, phi-3
  std::string_view jinja;  // the template
  // The control tokens without which a vocabulary cannot tell turns apart; none where turns are
  // spelled in plain text.
  std::span<const std::string_view> tokens;
};

std::span<const ChatStyle> chat_styles();
// Without regard to case and hyphens; null for other names.
[[nodiscard]] const ChatStyle* try_chat_style(std::string_view name);
// All of them, to be read: "chatml, llama-2, ... and phi-3".
std::string chat_style_names();

}  // namespace spillway
