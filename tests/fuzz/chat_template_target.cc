// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/fuzz/fuzz_targets.h"
#include "text/jinja/chat_rendering.h"

namespace spillway {
namespace {

using Json = nlohmann::ordered_json;

ChatRequest conversation() {
  ChatRequest request;
  request.messages = Json::parse(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Gr\u00fc\u00dfe <|im_end|> \ud83d\ude42"},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
      "function": {"name": "get", "arguments": {"x": 1, "y": [2.5, -0.0, true, null, ""]}}}]},
    {"role": "tool", "tool_call_id": "1", "content": "{\"a\": [1, 2]}"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])");
  request.tools = Json::parse(R"([{"type": "function", "function": {"name": "get",
    "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}])");
  request.variables = Json::parse(
      R"({"n": 7, "f": 1e300, "l": [3, 1, 2], "d": {"b": 1, "a": {"c": "x"}}, "enable_thinking": false})");
  request.bos = "<s>";
  request.eos = "</s>";
  return request;
}

// Limits are small, so that exceeding them takes no time.
JinjaOptions small_limits() {
  JinjaOptions options;
  options.limits.steps = 20'000;
  options.limits.value_bytes = 1 << 20;
  options.limits.output_bytes = 64 << 10;
  options.limits.range_items = 1000;
  options.now = std::tm{};
  options.now->tm_mday = 1;
  options.now->tm_year = 126;
  return options;
}

// Returns the rendered text, or the error's text.
std::string outcome(const JinjaTemplate& parsed, const ChatRequest& request) {
  const JinjaOptions options = small_limits();
  try {
    std::string text;
    size_t bytes = 0;
    bool was_marker = false;
    for (const TextSegment& segment : render_chat(parsed, request, options)) {
      SPW_ASSERT(!segment.text.empty());
      SPW_ASSERT(text.empty() || segment.is_marker != was_marker);
      was_marker = segment.is_marker;
      bytes += segment.text.size();
      text += segment.is_marker ? "[" : "(";
      text += segment.text;
    }
    SPW_ASSERT(bytes <= options.limits.output_bytes);
    return text;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return error.what();
  }
}

}  // namespace

void fuzz_chat_template(std::string_view bytes) {
  static const ChatRequest request = conversation();
  try {
    const JinjaTemplate parsed(bytes);
    SPW_ASSERT(outcome(parsed, request) == outcome(parsed, request));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
  }
}

}  // namespace spillway
