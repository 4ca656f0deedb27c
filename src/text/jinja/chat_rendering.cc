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
  const nlohmann::ordered_json none;
  const nlohmann::ordered_json prompt = request.add_generation_prompt;
  const nlohmann::ordered_json bos = request.bos;
  const nlohmann::ordered_json eos = request.eos;
  std::vector<JinjaVariable> variables;
  if (request.variables.is_object()) {
    for (const auto& [name, value] :
         request.variables.get_ref<const nlohmann::ordered_json::object_t&>())
      variables.push_back({.name = name, .value = &value});
  }
  variables.push_back({.name = "messages", .value = &request.messages});
  variables.push_back({.name = "tools", .value = &request.tools});
  variables.push_back({.name = "documents", .value = &none});  // apply_chat_template passes it, too
  variables.push_back({.name = "add_generation_prompt", .value = &prompt});
  variables.push_back({.name = "bos_token", .value = &bos});
  variables.push_back({.name = "eos_token", .value = &eos});
  options.trusted = kTrusted;
  options.trusted_roles = kRoles;
  return chat_template.render(variables, options);
}

}  // namespace spillway
