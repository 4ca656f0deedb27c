// SPDX-License-Identifier: Apache-2.0
// Conversations as text, for tests.
#pragma once

#include <span>
#include <string>

#include "text/chat_template.h"

namespace spillway {

// All segments as one text.
inline std::string render_chat(const ChatTemplate& chat, std::span<const ChatMessage> messages,
                               bool add_generation_prompt) {
  std::string text;
  for (const ChatSegment& segment : render_chat_segments(chat, messages, add_generation_prompt))
    text.append(segment.text);
  return text;
}

}  // namespace spillway
