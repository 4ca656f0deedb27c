// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/printable.h"
#include "serve/api_error.h"

namespace spillway {
namespace {

using json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr int kMaxMembers = 1024;  // of an object: looking them up takes longer with each
constexpr int kMaxChoices = 128;
constexpr size_t kMaxPrompts = 1024;
constexpr int kMostPriority = 16;
constexpr size_t kMaxStops = 16;
constexpr int kMaxLogprobs = 20;
constexpr int kCompletionTokens = 16;  // what OpenAI generates where max_tokens is not given

// Fields that say something about the client, or about what OpenAI does beside answering (who
// reads along, what is billed or kept), not about the answer.
constexpr std::string_view kWithoutEffect[] = {"metadata",
                                               "moderation",
                                               "prompt_cache_key",
                                               "prompt_cache_options",
                                               "prompt_cache_retention",
                                               "return_token_ids",
                                               "service_tier",
                                               "store"};
// OpenAI's fields that are not supported; what stands for "not used" passes.
constexpr std::string_view kUnsupported[] = {
    "audio",       "function_call",    "functions",          "modalities",
    "prediction",  "reasoning_effort", "response_format",    "suffix",
    "tool_choice", "verbosity",        "web_search_options", "parallel_tool_calls"};

[[noreturn]] void refuse(const char* code, const std::string& param, const std::string& message) {
  throw ApiError(400, code, param, message);
}

[[noreturn]] void refuse_type(const std::string& param, const char* wanted) {
  refuse("invalid_type", param, fmt::format("'{}' must be {}", param, wanted));
}

// The members of a JSON object, each taken once; what nobody took is refused at the end.
class Fields {
 public:
  // `path` is "" for the body, or what leads to this object: "messages[2]".
  Fields(const json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) refuse_type(path_.empty() ? "body" : path_, "an object");
  }

  std::string param(std::string_view name) const {
    return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
  }
  // Null where the member is missing or null.
  const json* try_take(std::string_view name) {
    taken_.insert(std::string(name));
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  const json& take(std::string_view name) {
    const json* value = try_take(name);
    if (value == nullptr)
      refuse("missing_required_parameter", param(name),
             fmt::format("'{}' is missing", param(name)));
    return *value;
  }
  std::string string(std::string_view name) { return as_string(take(name), param(name)); }

  static std::string as_string(const json& value, const std::string& param) {
    if (!value.is_string()) refuse_type(param, "a string");
    return value.get<std::string>();
  }

  template <class T>
  void integer_into(std::string_view name, int64_t low, int64_t high, T& out) {
    if (const json* value = try_take(name))
      out = static_cast<T>(as_integer(*value, param(name), low, high));
  }
  static int64_t as_integer(const json& value, const std::string& param, int64_t low,
                            int64_t high) {
    if (!value.is_number_integer()) refuse_type(param, "an integer");
    const bool huge =
        value.is_number_unsigned() &&
        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    const int64_t number = huge ? 0 : value.get<int64_t>();
    if (huge || number < low || number > high)
      refuse("invalid_value", param,
             fmt::format("'{}' is {}; give {} to {}", param, value.dump(), low, high));
    return number;
  }

  void number_into(std::string_view name, double low, double high, float& out) {
    if (const json* value = try_take(name)) out = as_number(*value, param(name), low, high);
  }
  static float as_number(const json& value, const std::string& param, double low, double high) {
    if (!value.is_number()) refuse_type(param, "a number");
    const auto number = value.get<double>();
    if (!(number >= low && number <= high))
      refuse("invalid_value", param,
             fmt::format("'{}' is {}; give {} to {}", param, value.dump(), low, high));
    return static_cast<float>(number);
  }

  void boolean_into(std::string_view name, bool& out) {
    const json* value = try_take(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) refuse_type(param(name), "true or false");
    out = value->get<bool>();
  }

  void ignore(std::string_view name) { taken_.insert(std::string(name)); }

  void refuse_others() const {
    for (const auto& [name, value] : object_.items()) {
      if (taken_.contains(name)) continue;
      const std::string shown = printable(param(name), 80);
      refuse("unknown_parameter", shown, fmt::format("'{}' is not a known field here", shown));
    }
  }

 private:
  const json& object_;
  std::string path_;
  std::set<std::string, std::less<>> taken_;
};

// Whether the value of an unsupported field asks for nothing.
bool is_neutral(std::string_view name, const json& value) {
  if (value.is_boolean()) return !value.get<bool>() || name == "parallel_tool_calls";
  if (value.is_array()) return value.empty() || (name == "modalities" && value == json{"text"});
  if (name == "suffix") return value == "";
  if (name == "reasoning_effort") return value == "none";
  if (name == "verbosity") return value == "medium";
  if (name == "tool_choice" || name == "function_call") return value == "none" || value == "auto";
  if (name == "response_format") return value.is_object() && value.value("type", json()) == "text";
  return false;
}

void read_unsupported(Fields& fields) {
  for (const std::string_view name : kUnsupported) {
    const json* value = fields.try_take(name);
    if (value == nullptr || is_neutral(name, *value)) continue;
    refuse("unsupported_parameter", std::string(name), fmt::format("'{}' is not supported", name));
  }
}

void read_choices(Fields& fields, OpenAiRequest& request) {
  fields.integer_into("n", 1, kMaxChoices, request.choices);
  int best_of = request.choices;
  fields.integer_into("best_of", 1, kMaxChoices, best_of);
  if (best_of != request.choices)
    refuse("unsupported_parameter", "best_of", "'best_of' must be what 'n' is");
}

void read_client(Fields& fields, OpenAiRequest& request) {
  fields.integer_into("priority", -kMostPriority, kMostPriority, request.priority);
  for (const char* name : {"user", "safety_identifier"})
    if (const json* user = fields.try_take(name)) request.user = Fields::as_string(*user, name);
}

// Of what the assistant said, a refusal is text like the rest.
std::string read_content(const json& content, const std::string& param, bool is_assistant) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse_type(param, "a string or an array of text parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}[{}]", param, i));
    const std::string type = part.string("type");
    const bool is_refusal = is_assistant && type == "refusal";
    if (type != "text" && !is_refusal)
      refuse("unsupported_parameter", part.param("type"),
             fmt::format("'{}' is '{}'; only text is supported", part.param("type"),
                         printable(type, 40)));
    if (i > 0) text += '\n';
    text += part.string(is_refusal ? "refusal" : "text");
    part.refuse_others();
  }
  return text;
}

// What a model wrote: an object where it is one, within the bounds of requests.
json object_or_text(const std::string& text) {
  try {
    json parsed = parse_json_text(text);
    if (parsed.is_object()) return parsed;
  } catch (const ApiError&) {
    // It is text then.
  }
  return text;
}

// As templates take them: the arguments as an object where they are one.
json read_tool_calls(const json& calls, const std::string& path) {
  if (!calls.is_array()) refuse_type(path, "an array");
  json out = json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    Fields call(calls[i], fmt::format("{}[{}]", path, i));
    json made = json::object();
    if (const json* id = call.try_take("id")) made["id"] = Fields::as_string(*id, call.param("id"));
    if (const json* type = call.try_take("type"); type != nullptr && *type != "function")
      refuse("unsupported_parameter", call.param("type"),
             fmt::format("'{}' must be function", call.param("type")));
    call.ignore("index");
    made["type"] = "function";
    Fields function(call.take("function"), call.param("function"));
    made["function"]["name"] = function.string("name");
    const std::string arguments = function.string("arguments");
    made["function"]["arguments"] = object_or_text(arguments);
    function.refuse_others();
    call.refuse_others();
    out.push_back(std::move(made));
  }
  return out;
}

json read_message(const json& given, const std::string& path) {
  Fields message(given, path);
  std::string role = message.string("role");
  if (role == "developer") role = "system";  // OpenAI's newer name for it
  if (role != "system" && role != "user" && role != "assistant" && role != "tool")
    refuse("unsupported_parameter", message.param("role"),
           fmt::format("'{}' is '{}'; system, developer, user, assistant and tool are supported",
                       message.param("role"), printable(role, 40)));
  json out = {{"role", role}};
  const json* const calls = message.try_take("tool_calls");
  const bool has_calls = calls != nullptr && !(calls->is_array() && calls->empty());
  if (has_calls && role != "assistant")
    refuse("invalid_value", message.param("tool_calls"), "only the assistant calls tools");
  const bool is_assistant = role == "assistant";
  const json* const content = message.try_take("content");
  const json* const refusal = message.try_take("refusal");
  if (refusal != nullptr && !is_assistant)
    refuse("invalid_value", message.param("refusal"), "only the assistant refuses");
  if (content != nullptr) {
    out["content"] = read_content(*content, message.param("content"), is_assistant);
  } else if (refusal != nullptr) {
    out["content"] = Fields::as_string(*refusal, message.param("refusal"));
  } else if (has_calls) {
    out["content"] = "";
  } else {
    message.take("content");  // says that it is missing
  }
  if (has_calls) out["tool_calls"] = read_tool_calls(*calls, message.param("tool_calls"));
  for (const char* name : {"name", "tool_call_id", "reasoning_content"})
    if (const json* value = message.try_take(name))
      out[name] = Fields::as_string(*value, message.param(name));
  for (const char* name : {"audio", "function_call"}) {
    const json* value = message.try_take(name);
    if (value != nullptr)
      refuse("unsupported_parameter", message.param(name),
             fmt::format("'{}' is not supported", message.param(name)));
  }
  message.ignore("annotations");
  message.refuse_others();
  return out;
}

json read_messages(const json& messages) {
  if (!messages.is_array()) refuse_type("messages", "an array");
  if (messages.empty())
    refuse("invalid_value", "messages", "'messages' is empty; give at least one");
  json out = json::array();
  for (size_t i = 0; i < messages.size(); ++i)
    out.push_back(read_message(messages[i], fmt::format("messages[{}]", i)));
  return out;
}

// Templates show them to the model as they are.
json read_tools(const json& tools) {
  if (!tools.is_array()) refuse_type("tools", "an array");
  for (size_t i = 0; i < tools.size(); ++i) {
    Fields tool(tools[i], fmt::format("tools[{}]", i));
    if (tool.string("type") != "function")
      refuse("unsupported_parameter", tool.param("type"),
             fmt::format("'{}' must be function", tool.param("type")));
    Fields function(tool.take("function"), tool.param("function"));
    function.string("name");
  }
  return tools.empty() ? json() : tools;
}

std::vector<TokenId> read_ids(const json& ids, const char* param) {
  std::vector<TokenId> out;
  out.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!ids[i].is_number_integer()) refuse_type(param, "a string or an array of token ids");
    out.push_back(static_cast<TokenId>(Fields::as_integer(ids[i], fmt::format("{}[{}]", param, i),
                                                          0, std::numeric_limits<TokenId>::max())));
  }
  return out;
}

OpenAiPrompt read_prompt(const json& prompt) {
  if (prompt.is_string()) return prompt.get<std::string>();
  if (!prompt.is_array()) refuse_type("prompt", "a string or an array of token ids");
  return read_ids(prompt, "prompt");
}

// One prompt, or a list of them.
std::vector<OpenAiPrompt> read_prompts(const json& given) {
  const bool is_list =
      given.is_array() && !given.empty() && (given[0].is_string() || given[0].is_array());
  if (!is_list) return {read_prompt(given)};
  if (given.size() > kMaxPrompts)
    refuse("invalid_value", "prompt",
           fmt::format("'prompt' has {} prompts; give at most {}", given.size(), kMaxPrompts));
  std::vector<OpenAiPrompt> prompts;
  for (const json& prompt : given) prompts.push_back(read_prompt(prompt));
  return prompts;
}

std::vector<std::string> read_stop(const json& stop) {
  if (stop.is_string()) return {stop.get<std::string>()};
  if (!stop.is_array()) refuse_type("stop", "a string or an array of strings");
  if (stop.size() > kMaxStops)
    refuse("invalid_value", "stop",
           fmt::format("'stop' has {} strings; give at most {}", stop.size(), kMaxStops));
  std::vector<std::string> out;
  for (size_t i = 0; i < stop.size(); ++i)
    out.push_back(Fields::as_string(stop[i], fmt::format("stop[{}]", i)));
  return out;
}

std::vector<std::pair<TokenId, float>> read_logit_bias(const json& biases) {
  if (!biases.is_object()) refuse_type("logit_bias", "an object from token ids to biases");
  std::vector<std::pair<TokenId, float>> out;
  for (const auto& [key, value] : biases.items()) {
    const std::string param = "logit_bias." + printable(key, 40);
    TokenId id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0)
      refuse("invalid_value", param, fmt::format("'{}' does not name a token id", param));
    out.emplace_back(id, Fields::as_number(value, param, -100, 100));
  }
  return out;
}

void read_sampling(Fields& fields, OpenAiRequest& request) {
  SamplingParams& sampling = request.sampling;
  sampling.temperature = 1;
  fields.number_into("temperature", 0, 100, sampling.temperature);
  fields.number_into("top_p", 0, 1, sampling.top_p);
  fields.integer_into("top_k", -1, std::numeric_limits<int>::max(), sampling.top_k);
  sampling.top_k = std::max(sampling.top_k, 0);  // -1 is how some clients say "all"
  fields.number_into("min_p", 0, 1, sampling.min_p);
  fields.number_into("repetition_penalty", 0.01, 100, sampling.repetition_penalty);
  fields.number_into("presence_penalty", -100, 100, sampling.presence_penalty);
  fields.number_into("frequency_penalty", -100, 100, sampling.frequency_penalty);
  if (const json* biases = fields.try_take("logit_bias"))
    sampling.logit_bias = read_logit_bias(*biases);
  if (const json* seed = fields.try_take("seed")) {
    if (!seed->is_number_integer()) refuse_type("seed", "an integer of 64 bits");
    request.seed = seed->is_number_unsigned() ? seed->get<uint64_t>()
                                              : static_cast<uint64_t>(seed->get<int64_t>());
  }
  if (const json* stop = fields.try_take("stop")) request.stop = read_stop(*stop);
  fields.boolean_into("ignore_eos", request.ignore_end);
}

void read_stream(Fields& fields, OpenAiRequest& request) {
  fields.boolean_into("stream", request.stream);
  if (const json* options = fields.try_take("stream_options")) {
    Fields inner(*options, "stream_options");
    inner.boolean_into("include_usage", request.stream_usage);
    bool pads = false;  // chunks to one length: for who reads along on the way, which TLS is for
    inner.boolean_into("include_obfuscation", pads);
    inner.refuse_others();
    if (!request.stream)
      refuse("invalid_value", "stream_options", "'stream_options' needs 'stream' to be true");
  }
}

void read_max_tokens(Fields& fields, const char* name, int least, OpenAiRequest& request) {
  int tokens = -1;
  fields.integer_into(name, least, std::numeric_limits<int>::max(), tokens);
  if (tokens >= 0) request.max_tokens = tokens;
}

// Of every token of every choice: an answer of gigabytes helps nobody.
void bound_logprobs(const OpenAiRequest& request) {
  constexpr int kMost = 256;
  if (request.choices * (request.sampling.logprobs + 1) > kMost)
    refuse("invalid_value", "n",
           fmt::format("{} choices with {} log-probabilities each are too many; at most {} in all",
                       request.choices, request.sampling.logprobs, kMost));
}

void read_conversation(const json& messages, Fields& fields, OpenAiRequest& request) {
  request.messages = read_messages(messages);
  if (const json* tools = fields.try_take("tools")) request.tools = read_tools(*tools);
  if (const json* variables = fields.try_take("chat_template_kwargs")) {
    if (!variables->is_object()) refuse_type("chat_template_kwargs", "an object");
    request.template_variables = *variables;
  }
}

void read_chat(Fields& fields, OpenAiRequest& request) {
  read_conversation(fields.take("messages"), fields, request);
  read_max_tokens(fields, "max_tokens", 1, request);
  read_max_tokens(fields, "max_completion_tokens", 1, request);  // the newer name wins
  bool logprobs = false;
  fields.boolean_into("logprobs", logprobs);
  int top = 0;
  fields.integer_into("top_logprobs", 0, kMaxLogprobs, top);
  if (top > 0 && !logprobs)
    refuse("invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
  if (logprobs) request.sampling.logprobs = top;
  bound_logprobs(request);
}

void read_completion(Fields& fields, OpenAiRequest& request) {
  request.prompts = read_prompts(fields.take("prompt"));
  request.max_tokens = kCompletionTokens;
  read_max_tokens(fields, "max_tokens", 0, request);
  fields.boolean_into("echo", request.echo);
  fields.integer_into("logprobs", 0, kMaxLogprobs, request.sampling.logprobs);
  bound_logprobs(request);
}

}  // namespace

std::optional<OpenAiRoute> try_openai_route(std::string_view url) {
  if (url == "/v1/chat/completions") return OpenAiRoute::kChatCompletions;
  if (url == "/v1/completions") return OpenAiRoute::kCompletions;
  return std::nullopt;
}

json parse_json_text(std::string_view text) {
  std::array<int, kMaxDepth + 2> members = {};  // of the objects that are being read, by depth
  const auto bound = [&](int depth, json::parse_event_t event, json&) {
    if (depth > kMaxDepth)
      throw ApiError(400, "invalid_json", "",
                     fmt::format("the JSON is nested deeper than {}", kMaxDepth));
    if (event == json::parse_event_t::object_start) members[static_cast<size_t>(depth) + 1] = 0;
    if (event == json::parse_event_t::key && ++members[static_cast<size_t>(depth)] > kMaxMembers)
      throw ApiError(400, "invalid_json", "",
                     fmt::format("an object has more than {} members", kMaxMembers));
    return true;
  };
  // The parser takes a zero byte for the end, and would leave what follows unread.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw ApiError(400, "invalid_json", "",
                   fmt::format("not valid JSON: column {}: a zero byte", zero + 1));
  try {
    return json::parse(text.begin(), text.end(), bound);
  } catch (const json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..."
    std::string_view what = error.what();
    if (const auto bracket = what.find("] "); bracket != std::string_view::npos)
      what.remove_prefix(bracket + 2);
    if (const auto column = what.find("column "); column != std::string_view::npos)
      what.remove_prefix(column);
    throw ApiError(400, "invalid_json", "", "not valid JSON: " + printable(what, 160));
  }
}

OpenAiRequest parse_openai_request(OpenAiRoute route, const json& body) {
  OpenAiRequest request;
  request.route = route;
  Fields fields(body, "");
  if (const json* model = fields.try_take("model"))
    request.model = Fields::as_string(*model, "model");
  read_unsupported(fields);
  read_choices(fields, request);
  read_client(fields, request);
  read_sampling(fields, request);
  read_stream(fields, request);
  if (route == OpenAiRoute::kChatCompletions) {
    read_chat(fields, request);
  } else {
    read_completion(fields, request);
  }
  for (const std::string_view name : kWithoutEffect) fields.ignore(name);
  fields.refuse_others();
  return request;
}

TokenizeRequest parse_tokenize_request(const json& body) {
  TokenizeRequest request;
  Fields fields(body, "");
  // vLLM says "prompt", begins with BOS unless told otherwise and finds control tokens in it, as
  // lm-eval counts on; llama-server says "content", without.
  const json* const prompt = fields.try_take("prompt");
  const json* const messages = fields.try_take("messages");
  request.add_special = request.parse_special = prompt != nullptr;
  if (messages != nullptr && prompt != nullptr)
    refuse("invalid_value", "messages", "give 'prompt' or 'messages', not both");
  if (messages != nullptr) {
    request.chat.emplace();
    request.chat->route = OpenAiRoute::kChatCompletions;
    read_conversation(*messages, fields, *request.chat);
    fields.boolean_into("add_generation_prompt", request.add_generation_prompt);
  } else {
    request.content =
        prompt != nullptr ? Fields::as_string(*prompt, "prompt") : fields.string("content");
  }
  fields.ignore("content");
  fields.ignore("model");
  fields.boolean_into("add_special", request.add_special);
  fields.boolean_into("add_special_tokens", request.add_special);
  fields.boolean_into("parse_special", request.parse_special);
  fields.boolean_into("with_pieces", request.with_pieces);
  fields.refuse_others();
  return request;
}

std::vector<TokenId> parse_detokenize_request(const json& body) {
  Fields fields(body, "");
  const json& tokens = fields.take("tokens");
  if (!tokens.is_array()) refuse_type("tokens", "an array of token ids");
  fields.ignore("model");
  fields.refuse_others();
  return read_ids(tokens, "tokens");
}

}  // namespace spillway
