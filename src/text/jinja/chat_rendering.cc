// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/chat_rendering.h"

#include <array>
#include <string_view>

#include "base/error.h"

namespace spillway {
namespace {

constexpr std::array<std::string_view, 2> kTrusted = {"bos_token", "eos_token"};
constexpr std::array<std::string_view, 10> kRoles = {
    "system", "developer", "user",        "assistant", "tool",
    "model",  "function",  "observation", "ipython",   "tool_response"};

}  // namespace

std::vector<TextSegment> render_chat(const JinjaTemplate& chat_template, const ChatRequest& request,
                                     JinjaOptions options) {
  SPW_CHECK(request.messages.is_array(), kInvalidArgument, "the messages of a chat are an array");
  SPW_CHECK(request.variables.is_null() || request.variables.is_object(), kInvalidArgument,
            "the variables of a chat template are a JSON object");
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  if (request.variables.is_object()) variables = request.variables;
  variables["messages"] = request.messages;
  variables["tools"] = request.tools;
  variables["documents"] = nullptr;  // what apply_chat_template always passes
  variables["add_generation_prompt"] = request.add_generation_prompt;
  variables["bos_token"] = request.bos;
  variables["eos_token"] = request.eos;
  options.trusted = kTrusted;
  options.trusted_roles = kRoles;
  return chat_template.render(variables, options);
}

}  // namespace spillway
