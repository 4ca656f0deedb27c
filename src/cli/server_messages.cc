// SPDX-License-Identifier: Apache-2.0
#include "cli/server_messages.h"

#include <fmt/core.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/printable.h"
#include "serve/api_error.h"
#include "serve/bounded_json.h"
#include "serve/openai_request.h"

namespace spillway {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostModels = 10'000;
constexpr size_t kMostMessageBytes = 1000;  // longest error message that is shown
constexpr uint64_t kMostTokens = uint64_t{1} << 40;

ordered_json parse_answer(std::string_view text) {
  try {
    return parse_json_text(text);
  } catch (const ApiError& error) {
    fail(ErrorCode::kIo, "the server's answer is broken: {}", error.what());
  }
}

// Returns null if `value` is not an object or has no such member.
const ordered_json* find(const ordered_json* value, const char* name) {
  if (value == nullptr || !value->is_object()) return nullptr;
  const auto found = value->find(name);
  return found == value->end() ? nullptr : &*found;
}

std::string find_text(const ordered_json* value, const char* name) {
  const ordered_json* const found = find(value, name);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<size_t> find_count(const ordered_json* value, const char* name) {
  const ordered_json* const found = find(value, name);
  if (found == nullptr || !found->is_number_unsigned()) return std::nullopt;
  const auto count = found->get<uint64_t>();
  return count <= kMostTokens ? std::optional<size_t>(count) : std::nullopt;
}

// Converts to the shortest double: 0.8, where a cast would give 0.800000011920929.
double shortest(float value) {
  const std::string text = fmt::format("{}", value);
  double result = value;
  std::from_chars(text.data(), text.data() + text.size(), result);
  return result;
}

// Understands {"error": {"message": ...}}, which most servers send, and {"error": ...}, {"message":
// ...} or {"detail": ...} of the others.
std::string error_message(const ordered_json& body) {
  const ordered_json* const error = find(&body, "error");
  for (std::string text : {find_text(error, "message"), find_text(&body, "error"),
                           find_text(&body, "message"), find_text(&body, "detail")}) {
    if (!text.empty()) return text;
  }
  return "";
}

ServerKind kind_of(const std::string& owner) {
  if (owner == "llamacpp") return ServerKind::kLlamaServer;
  return owner == "spillway" ? ServerKind::kSpillway : ServerKind::kOther;
}

}  // namespace

std::vector<ServerModel> parse_model_list(std::string_view body) {
  const ordered_json answer = parse_answer(body);
  const ordered_json* const list = find(&answer, "data");
  SPW_CHECK(list != nullptr && list->is_array() && list->size() <= kMostModels, kIo,
            "the server's list of models is none; is it OpenAI-compatible?");
  std::vector<ServerModel> models;
  for (const ordered_json& entry : *list) {
    const std::string id = find_text(&entry, "id");
    if (id.empty()) continue;
    ServerModel model{.id = id, .kind = kind_of(find_text(&entry, "owned_by"))};
    if (const auto context = find_count(&entry, "max_model_len"); context && *context > 0)
      model.context = static_cast<int64_t>(*context);
    models.push_back(std::move(model));
  }
  return models;
}

ordered_json sampling_fields(const SamplingOptions& options, ServerKind server) {
  ordered_json fields = ordered_json::object();
  const auto add = [&](const char* name, const std::optional<float>& value) {
    if (value) fields[name] = shortest(*value);
  };
  add("temperature", options.temperature);
  if (options.top_k) fields["top_k"] = *options.top_k;
  add("top_p", options.top_p);
  add("min_p", options.min_p);
  add(server == ServerKind::kLlamaServer ? "repeat_penalty" : "repetition_penalty",
      options.repetition_penalty);
  if (options.repetition_window) {
    SPW_CHECK(server != ServerKind::kOther, kInvalidArgument,
              "this server has no field for --repetition-window; leave it out");
    const int window = *options.repetition_window;
    fields["repeat_last_n"] = window == 0 ? -1 : window;  // -1 means all tokens there
  }
  add("presence_penalty", options.presence_penalty);
  add("frequency_penalty", options.frequency_penalty);
  for (const auto& [id, bias] : options.over({}).logit_bias)
    fields["logit_bias"][std::to_string(id)] = shortest(bias);
  if (!options.stop.empty()) fields["stop"] = options.stop;
  return fields;
}

std::string unusual_flags(const SamplingOptions& options) {
  std::string flags;
  const auto add = [&](bool given, const char* flag) {
    if (given) flags += fmt::format("{}{}", flags.empty() ? "" : ", ", flag);
  };
  add(options.top_k.has_value(), "--top-k");
  add(options.min_p.has_value(), "--min-p");
  add(options.repetition_penalty.has_value(), "--repetition-penalty");
  add(options.repetition_window.has_value(), "--repetition-window");
  return flags;
}

ServerEvent parse_server_event(std::string_view data) {
  const ordered_json answer = parse_answer(data);
  SPW_CHECK(answer.is_object(), kIo, "the server's answer is broken: an event is no object");
  ServerEvent event;
  if (answer.contains("error") && !answer["error"].is_null()) {
    event.error = printable(error_message(answer), kMostMessageBytes);
    if (event.error.empty()) event.error = "it does not say why";
    return event;
  }
  const ordered_json* const usage = find(&answer, "usage");
  event.prompt_tokens = find_count(usage, "prompt_tokens");
  event.completion_tokens = find_count(usage, "completion_tokens");
  event.cached_tokens = find_count(find(usage, "prompt_tokens_details"), "cached_tokens");
  const ordered_json* const choices = find(&answer, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return event;
  const ordered_json& choice = choices->front();
  const ordered_json* const delta = find(&choice, "delta");
  event.text = find_text(delta, "content");
  event.is_piece = !event.text.empty() || !find_text(delta, "reasoning_content").empty() ||
                   !find_text(delta, "reasoning").empty();
  const std::string finish = find_text(&choice, "finish_reason");
  if (finish == "error") event.error = "it does not say why";
  if (!finish.empty())
    event.finish = finish == "length" ? FinishReason::kLength : FinishReason::kStop;
  return event;
}

ServerRefusal parse_refusal(int status, std::string_view body) {
  ServerRefusal refusal{.status = status};
  try {
    const ordered_json answer = parse_json_text(body);
    const ordered_json* const error = find(&answer, "error");
    refusal.message = error_message(answer);
    refusal.context_is_full = find_text(error, "code") == "context_length_exceeded" ||
                              find_text(error, "type") == "exceed_context_size_error";
  } catch (const ApiError&) {
    refusal.message = body;  // a proxy's page, or plain text
  }
  // vLLM has no error code for a full context.
  if (status == 400 && refusal.message.find("maximum context length") != std::string::npos)
    refusal.context_is_full = true;
  refusal.message = printable(refusal.message, kMostMessageBytes);
  if (refusal.message.empty()) refusal.message = "it does not say why";
  return refusal;
}

}  // namespace spillway
