// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_conversation.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/printable.h"
#include "serve/api_error.h"
#include "serve/bounded_json.h"

namespace spillway {
namespace {

using json = nlohmann::ordered_json;

// Joins the text parts of a message. For the assistant, a refusal counts as text.
std::string read_content(const json& content, const std::string& param, bool is_assistant,
                         IgnoredFields& ignored) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse_field_type(param, "a string or an array of text parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    RequestFields part(content[i], fmt::format("{}[{}]", param, i), ignored);
    const std::string type = part.string("type");
    const bool is_refusal = is_assistant && type == "refusal";
    if (type != "text" && !is_refusal)
      refuse_field("unsupported_parameter", part.param("type"),
                   fmt::format("'{}' is '{}'; only text is supported", part.param("type"),
                               printable(type, 40)));
    if (i > 0) text += '\n';
    text += part.string(is_refusal ? "refusal" : "text");
    part.end();
  }
  return text;
}

// Parses text from a model as an object within the bounds of requests, or else returns the text.
json object_or_text(const std::string& text) {
  try {
    json parsed = parse_json_text(text);
    if (parsed.is_object()) return parsed;
  } catch (const ApiError&) {
    // Invalid JSON is kept as text.
  }
  return text;
}

// Templates take arguments as an object, but OpenAI's API sends them as JSON text.
json read_arguments(const json& arguments, const std::string& param) {
  if (arguments.is_object()) return arguments;
  if (!arguments.is_string()) refuse_field_type(param, "a string or an object");
  return object_or_text(arguments.get<std::string>());
}

json read_tool_calls(const json& calls, const std::string& path, IgnoredFields& ignored) {
  if (!calls.is_array()) refuse_field_type(path, "an array");
  json out = json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    RequestFields call(calls[i], fmt::format("{}[{}]", path, i), ignored);
    json made = json::object();
    if (const json* id = call.try_take("id"))
      made["id"] = RequestFields::as_string(*id, call.param("id"));
    if (const json* type = call.try_take("type"); type != nullptr && *type != "function")
      refuse_field("unsupported_parameter", call.param("type"),
                   fmt::format("'{}' must be function", call.param("type")));
    call.skip("index");
    made["type"] = "function";
    RequestFields function(call.take("function"), call.param("function"), ignored);
    made["function"]["name"] = function.string("name");
    made["function"]["arguments"] =
        read_arguments(function.take("arguments"), function.param("arguments"));
    function.end();
    call.end();
    out.push_back(std::move(made));
  }
  return out;
}

json read_message(const json& given, const std::string& path, IgnoredFields& ignored) {
  RequestFields message(given, path, ignored);
  std::string role = message.string("role");
  if (role == "developer") role = "system";  // OpenAI's newer name for it
  if (role != "system" && role != "user" && role != "assistant" && role != "tool")
    refuse_field(
        "unsupported_parameter", message.param("role"),
        fmt::format("'{}' is '{}'; system, developer, user, assistant and tool are supported",
                    message.param("role"), printable(role, 40)));
  json out = {{"role", role}};
  const json* const calls = message.try_take("tool_calls");
  const bool has_calls = calls != nullptr && !(calls->is_array() && calls->empty());
  if (has_calls && role != "assistant")
    refuse_field("invalid_value", message.param("tool_calls"), "only the assistant calls tools");
  const bool is_assistant = role == "assistant";
  const json* const content = message.try_take("content");
  const json* const refusal = message.try_take("refusal");
  if (refusal != nullptr && !is_assistant)
    refuse_field("invalid_value", message.param("refusal"), "only the assistant refuses");
  if (content != nullptr) {
    out["content"] = read_content(*content, message.param("content"), is_assistant, ignored);
  } else if (refusal != nullptr) {
    out["content"] = RequestFields::as_string(*refusal, message.param("refusal"));
  } else if (has_calls || message.has("content")) {
    out["content"] = "";
  } else {
    message.take("content");  // throws, since it is missing
  }
  if (has_calls) out["tool_calls"] = read_tool_calls(*calls, message.param("tool_calls"), ignored);
  for (const char* name : {"name", "tool_call_id", "reasoning_content"})
    if (const json* value = message.try_take(name))
      out[name] = RequestFields::as_string(*value, message.param(name));
  // vLLM's newer name for reasoning_content.
  if (const json* reasoning = message.try_take("reasoning");
      reasoning != nullptr && !out.contains("reasoning_content"))
    out["reasoning_content"] = RequestFields::as_string(*reasoning, message.param("reasoning"));
  for (const char* name : {"audio", "function_call"}) {
    const json* value = message.try_take(name);
    if (value != nullptr)
      refuse_field("unsupported_parameter", message.param(name),
                   fmt::format("'{}' is not supported", message.param(name)));
  }
  message.skip("annotations");
  message.end();
  return out;
}

}  // namespace

json read_messages(const json& messages, IgnoredFields& ignored) {
  if (!messages.is_array()) refuse_field_type("messages", "an array");
  if (messages.empty())
    refuse_field("invalid_value", "messages", "'messages' is empty; give at least one");
  json out = json::array();
  for (size_t i = 0; i < messages.size(); ++i)
    out.push_back(read_message(messages[i], fmt::format("messages[{}]", i), ignored));
  return out;
}

json read_tools(const json& tools) {
  if (!tools.is_array()) refuse_field_type("tools", "an array");
  IgnoredFields unused(UnknownFields::kIgnore);  // all fields of a tool are shown to the model
  for (size_t i = 0; i < tools.size(); ++i) {
    RequestFields tool(tools[i], fmt::format("tools[{}]", i), unused);
    if (tool.string("type") != "function")
      refuse_field("unsupported_parameter", tool.param("type"),
                   fmt::format("'{}' must be function", tool.param("type")));
    RequestFields function(tool.take("function"), tool.param("function"), unused);
    function.string("name");
  }
  return tools.empty() ? json() : tools;
}

}  // namespace spillway
