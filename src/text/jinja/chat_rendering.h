// SPDX-License-Identifier: Apache-2.0
// Renders conversations with a model's own template.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/jinja/jinja_options.h"
#include "text/jinja/jinja_template.h"
#include "text/text_segment.h"

namespace spillway {

struct ChatRequest {
  nlohmann::ordered_json messages;  // an array of objects with role and content
  nlohmann::ordered_json tools;     // OpenAI's function definitions; null for none
  // Other variables that the template may read, e.g. {"enable_thinking": false}; may be null.
  nlohmann::ordered_json variables;
  std::string bos;  // BOS and EOS as the vocabulary spells them; they are markers
  std::string eos;
  bool add_generation_prompt = true;
};

// Renders a conversation into segments. Text from messages, tools and variables lies in no marker,
// except the usual names of roles, because some templates spell control tokens with them, such as
// <|user|>. The text contains BOS if the template writes it, so encode it with add_special = false.
// `options.trusted` and `options.trusted_roles` are ignored. Throws Error(kInvalidArgument), as
// JinjaTemplate::render() does.
std::vector<TextSegment> render_chat(const JinjaTemplate& chat_template, const ChatRequest& request,
                                     JinjaOptions options = {});

}  // namespace spillway
