// SPDX-License-Identifier: Apache-2.0
// Conversations through a model's own template.
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
  // What else the template may look at, e.g. {"enable_thinking": false}; may be null.
  nlohmann::ordered_json variables;
  std::string bos;  // as the vocabulary spells them, which makes markers of them
  std::string eos;
  bool add_generation_prompt = true;
};

// What is in messages, tools and variables is not in markers, but for the usual names of roles:
// some templates spell control tokens with them, such as <|user|>. The text contains BOS where the
// template has it: encode with add_special = false. `options.trusted` and `options.trusted_roles`
// are not used. Throws Error(kInvalidArgument), as JinjaTemplate::render() does.
std::vector<TextSegment> render_chat(const JinjaTemplate& chat_template, const ChatRequest& request,
                                     JinjaOptions options = {});

}  // namespace spillway
