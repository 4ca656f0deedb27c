// SPDX-License-Identifier: Apache-2.0
// Conversations as the text a chat model was trained on: by a Jinja template, the model's own or
// another.
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
// As templates take them.
nlohmann::ordered_json messages_to_json(const std::vector<ChatMessage>& messages);

// What is to be rendered.
struct ChatPrompt {
  nlohmann::ordered_json messages;        // an array of objects with role and content
  nlohmann::ordered_json tools = {};      // OpenAI's function definitions; null for none
  nlohmann::ordered_json variables = {};  // what else the template may look at; null for nothing
  bool add_generation_prompt = true;
};

// Cheap to copy. Immutable, so thread-safe.
class ChatTemplate {
 public:
  // With BOS and EOS as this vocabulary spells them. Throws kInvalidArgument where the text is no
  // template.
  ChatTemplate(std::string_view jinja, const Vocabulary& vocabulary);

  // What is in messages, tools and variables is in no marker, so that it is never taken for a
  // control token. The text contains BOS where the template has it: encode with add_special =
  // false. Throws kInvalidArgument for what the template refuses, in its words.
  std::vector<TextSegment> render(const ChatPrompt& prompt) const;
  // As it was given.
  const std::string& source() const { return *source_; }
  // Whether a system message comes out in the text.
  bool takes_system() const { return takes_system_; }

 private:
  std::shared_ptr<const std::string> source_;
  JinjaTemplate template_;
  std::string bos_, eos_;
  bool takes_system_ = false;
};

}  // namespace spillway
