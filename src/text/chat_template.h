// SPDX-License-Identifier: Apache-2.0
// Renders a conversation as the text a chat model was trained on, by a Jinja template: the model's
// own or another.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/jinja_template.h"
#include "text/text_segment.h"
#include "text/vocabulary.h"

namespace spillway {

struct ChatMessage {
  std::string role;
  std::string content;
};
// Returns the messages in the form that templates take.
nlohmann::ordered_json messages_to_json(const std::vector<ChatMessage>& messages);

// The input of ChatTemplate::render().
struct ChatPrompt {
  nlohmann::ordered_json messages;        // an array of objects with role and content
  nlohmann::ordered_json tools = {};      // OpenAI's function definitions; null for none
  nlohmann::ordered_json variables = {};  // other variables for the template; null for none
  bool add_generation_prompt = true;
};

// A compiled chat template. Cheap to copy; immutable, so thread-safe.
class ChatTemplate {
 public:
  // Templates see BOS and EOS as this vocabulary spells them. Throws kInvalidArgument if `jinja` is
  // not a valid template.
  ChatTemplate(std::string_view jinja, const Vocabulary& vocabulary);

  // Renders a prompt. Text that comes from messages, tools or variables never lies in a marker
  // segment, so it is never taken for a control token. The text contains BOS if the template writes
  // it, so encode it with add_special = false. Throws kInvalidArgument, with the template's own
  // message, if the template refuses the prompt.
  std::vector<TextSegment> render(const ChatPrompt& prompt) const;
  // The text of the template, as it was given.
  const std::string& source() const { return *source_; }
  // Whether the template writes system messages into the text.
  bool supports_system_role() const { return supports_system_role_; }

 private:
  std::shared_ptr<const std::string> source_;
  JinjaTemplate template_;
  std::string bos_, eos_;
  bool supports_system_role_ = false;
};

}  // namespace spillway
