// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "serve/api_error.h"
#include "serve/openai_conversation.h"
#include "serve/unsupported_fields.h"

namespace spillway {
namespace {

using json = nlohmann::ordered_json;

constexpr int kMaxChoices = 128;
constexpr size_t kMaxPrompts = 1024;
constexpr int kMostPriority = 16;
constexpr size_t kMostSaltBytes = 1024;
constexpr size_t kMaxStops = 1024;
constexpr size_t kMaxStopBytes = size_t{64} << 10;  // of all together: each choice has a copy
constexpr size_t kMaxTokenIds = 1024;               // for stop_token_ids and logit_bias each
constexpr int kMaxLogprobs = 20;
constexpr int kCompletionTokens = 16;  // OpenAI's default of max_tokens
constexpr int kRepeatLastTokens = 64;  // llama-server's default of repeat_last_n
constexpr float kNeverBias = -1000;    // the lowest bias that SamplingParams accepts

// Fields about the client, or about OpenAI's handling of a request (moderation, billing, storage),
// that do not affect the answer.
constexpr std::string_view kWithoutEffect[] = {"metadata",
                                               "moderation",
                                               "prompt_cache_key",
                                               "prompt_cache_options",
                                               "prompt_cache_retention",
                                               "return_token_ids",
                                               "service_tier",
                                               "store"};

void read_choices(RequestFields& fields, OpenAiRequest& request) {
  for (const char* name : {"n", "n_cmpl"})
    fields.integer_into(name, 1, kMaxChoices, request.choices);
  int best_of = request.choices;
  fields.integer_into("best_of", 1, kMaxChoices, best_of);
  if (best_of != request.choices)
    refuse_field("unsupported_parameter", "best_of", "'best_of' must be what 'n' is");
}

void read_client(RequestFields& fields, OpenAiRequest& request) {
  fields.integer_into("priority", -kMostPriority, kMostPriority, request.priority);
  for (const char* name : {"user", "safety_identifier"})
    if (const json* user = fields.try_take(name))
      request.user = RequestFields::as_string(*user, name);
  if (const json* salt = fields.try_take("cache_salt")) {
    request.cache_salt = RequestFields::as_string(*salt, "cache_salt");
    if (request.cache_salt.empty() || request.cache_salt.size() > kMostSaltBytes)
      refuse_field("invalid_value", "cache_salt",
                   fmt::format("'cache_salt' must have 1 to {} bytes", kMostSaltBytes));
  }
}

std::vector<TokenId> read_ids(const json& ids, const char* param, const char* wanted) {
  if (!ids.is_array()) refuse_field_type(param, wanted);
  constexpr TokenId kMost = std::numeric_limits<TokenId>::max();
  std::vector<TokenId> out;
  out.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!is_whole_number(ids[i])) refuse_field_type(param, wanted);
    const std::optional<int64_t> id = try_whole_number(ids[i]);
    if (!id || *id < 0 || *id > kMost)
      RequestFields::as_integer(ids[i], fmt::format("{}[{}]", param, i), 0, kMost);  // throws
    out.push_back(static_cast<TokenId>(*id));
  }
  return out;
}

OpenAiPrompt read_prompt(const json& prompt) {
  if (prompt.is_string()) return prompt.get<std::string>();
  return read_ids(prompt, "prompt", "a string or an array of token ids");
}

// Reads one prompt, or a list of prompts.
std::vector<OpenAiPrompt> read_prompts(const json& given) {
  const bool is_list =
      given.is_array() && !given.empty() && (given[0].is_string() || given[0].is_array());
  if (!is_list) return {read_prompt(given)};
  if (given.size() > kMaxPrompts)
    refuse_field(
        "invalid_value", "prompt",
        fmt::format("'prompt' has {} prompts; give at most {}", given.size(), kMaxPrompts));
  std::vector<OpenAiPrompt> prompts;
  for (const json& prompt : given) prompts.push_back(read_prompt(prompt));
  return prompts;
}

void bound_stop_bytes(size_t bytes) {
  if (bytes > kMaxStopBytes)
    refuse_field("invalid_value", "stop",
                 fmt::format("'stop' has {} bytes; give at most {}", bytes, kMaxStopBytes));
}

std::vector<std::string> read_stop(const json& stop) {
  if (stop.is_string()) {
    bound_stop_bytes(stop.get_ref<const std::string&>().size());
    return {stop.get<std::string>()};
  }
  if (!stop.is_array()) refuse_field_type("stop", "a string or an array of strings");
  if (stop.size() > kMaxStops)
    refuse_field("invalid_value", "stop",
                 fmt::format("'stop' has {} strings; give at most {}", stop.size(), kMaxStops));
  std::vector<std::string> out;
  size_t bytes = 0;
  for (size_t i = 0; i < stop.size(); ++i) {
    out.push_back(RequestFields::as_string(stop[i], fmt::format("stop[{}]", i)));
    bytes += out.back().size();
  }
  bound_stop_bytes(bytes);
  return out;
}

void read_stop_ids(RequestFields& fields, OpenAiRequest& request) {
  const json* const ids = fields.try_take("stop_token_ids");
  if (ids == nullptr) return;
  request.stop_ids = read_ids(*ids, "stop_token_ids", "an array of token ids");
  if (ids->size() > kMaxTokenIds)
    refuse_field(
        "invalid_value", "stop_token_ids",
        fmt::format("'stop_token_ids' has {} ids; give at most {}", ids->size(), kMaxTokenIds));
}

// Reads llama-server's format: [[15043, 1.5], [1917, false]].
std::vector<std::pair<TokenId, float>> read_bias_pairs(const json& pairs) {
  if (pairs.size() > kMaxTokenIds)
    refuse_field(
        "invalid_value", "logit_bias",
        fmt::format("'logit_bias' has {} tokens; give at most {}", pairs.size(), kMaxTokenIds));
  std::vector<std::pair<TokenId, float>> out;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::string param = fmt::format("logit_bias[{}]", i);
    const json& pair = pairs[i];
    if (!pair.is_array() || pair.size() != 2)
      refuse_field_type(param, "an array of a token id and its bias");
    const auto id = static_cast<TokenId>(
        RequestFields::as_integer(pair[0], param, 0, std::numeric_limits<TokenId>::max()));
    out.emplace_back(
        id, pair[1] == false ? kNeverBias : RequestFields::as_number(pair[1], param, -100, 100));
  }
  return out;
}

std::vector<std::pair<TokenId, float>> read_logit_bias(const json& biases) {
  if (biases.is_array()) return read_bias_pairs(biases);
  if (!biases.is_object()) refuse_field_type("logit_bias", "an object from token ids to biases");
  std::vector<std::pair<TokenId, float>> out;
  for (const auto& [key, value] : biases.items()) {
    const std::string param = "logit_bias." + printable(key, 40);
    TokenId id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0)
      refuse_field("invalid_value", param, fmt::format("'{}' does not name a token id", param));
    out.emplace_back(id, RequestFields::as_number(value, param, -100, 100));
  }
  return out;
}

// vLLM's repetition_penalty covers all tokens, llama-server's repeat_penalty only the last ones.
void read_repetition(RequestFields& fields, SamplingParams& sampling) {
  const bool is_llama_server = fields.try_take("repetition_penalty") == nullptr &&
                               fields.try_take("repeat_penalty") != nullptr;
  fields.skip("repeat_penalty");
  fields.number_into(is_llama_server ? "repeat_penalty" : "repetition_penalty", 0.01, 100,
                     sampling.repetition_penalty);
  if (is_llama_server) sampling.repetition_window = kRepeatLastTokens;
  int last = -1;
  if (fields.try_take("repeat_last_n") == nullptr) return;
  fields.integer_into("repeat_last_n", -1, std::numeric_limits<int>::max(), last);
  sampling.repetition_window = std::max(last, 0);  // -1: all tokens
  if (last == 0) sampling.repetition_penalty = 1;
}

uint64_t read_seed(const json& seed) {
  if (seed.is_number_unsigned()) return seed.get<uint64_t>();
  const std::optional<int64_t> number = try_whole_number(seed);
  if (!number) refuse_field_type("seed", "an integer of 64 bits");
  return static_cast<uint64_t>(*number);
}

void read_sampling(RequestFields& fields, OpenAiRequest& request) {
  SamplingParams& sampling = request.sampling;
  sampling.temperature = 1;
  fields.number_into("temperature", 0, 100, sampling.temperature);
  fields.number_into("top_p", 0, 1, sampling.top_p);
  fields.integer_into("top_k", -1, std::numeric_limits<int>::max(), sampling.top_k);
  sampling.top_k = std::max(sampling.top_k, 0);  // some clients send -1 for "all"
  fields.number_into("min_p", 0, 1, sampling.min_p);
  read_repetition(fields, sampling);
  fields.number_into("presence_penalty", -100, 100, sampling.presence_penalty);
  fields.number_into("frequency_penalty", -100, 100, sampling.frequency_penalty);
  if (const json* biases = fields.try_take("logit_bias"))
    sampling.logit_bias = read_logit_bias(*biases);
  if (const json* seed = fields.try_take("seed")) request.seed = read_seed(*seed);
  if (const json* stop = fields.try_take("stop")) request.stop = read_stop(*stop);
  read_stop_ids(fields, request);
  fields.boolean_into("ignore_eos", request.ignore_end);
  fields.integer_into("min_tokens", 0, std::numeric_limits<int>::max(), request.min_tokens);
}

void read_stream(RequestFields& fields, OpenAiRequest& request) {
  fields.boolean_into("stream", request.stream);
  const json* const options = fields.try_take("stream_options");
  if (options == nullptr) return;
  RequestFields inner(*options, "stream_options", fields.ignored());
  inner.boolean_into("include_usage", request.stream_usage);
  inner.boolean_into("continuous_usage_stats", request.continuous_usage);
  bool pads = false;  // padding of chunks against eavesdroppers, which is left to TLS
  inner.boolean_into("include_obfuscation", pads);
  inner.end();
}

// Reads all names of this field; the last one of them counts. -1 is llama-server's "no limit".
void read_max_tokens(RequestFields& fields, int least, OpenAiRequest& request) {
  for (const char* name : {"max_tokens", "n_predict", "max_completion_tokens"}) {
    const json* const value = fields.try_take(name);
    if (value == nullptr) continue;
    if (*value == -1) {
      request.max_tokens.reset();
    } else {
      request.max_tokens = static_cast<int>(
          RequestFields::as_integer(*value, name, least, std::numeric_limits<int>::max()));
    }
  }
  if (request.min_tokens > request.max_tokens.value_or(request.min_tokens))
    refuse_field("invalid_value", "min_tokens",
                 fmt::format("'min_tokens' is {}, but the answer may have {} tokens at most",
                             request.min_tokens, *request.max_tokens));
}

// Bounds the log-probabilities per token over all choices, so that no answer has gigabytes.
void bound_logprobs(const OpenAiRequest& request) {
  constexpr int kMost = 256;
  if (request.choices * (request.sampling.logprobs + 1) > kMost)
    refuse_field(
        "invalid_value", "n",
        fmt::format("{} choices with {} log-probabilities each are too many; at most {} in all",
                    request.choices, request.sampling.logprobs, kMost));
}

void read_conversation(const json& messages, RequestFields& fields, OpenAiRequest& request) {
  request.messages = read_messages(messages, fields.ignored());
  if (const json* tools = fields.try_take("tools")) request.tools = read_tools(*tools);
  if (const json* variables = fields.try_take("chat_template_kwargs")) {
    if (!variables->is_object()) refuse_field_type("chat_template_kwargs", "an object");
    request.template_variables = *variables;
  }
  if (const json* documents = fields.try_take("documents")) {
    if (!documents->is_array()) refuse_field_type("documents", "an array");
    request.template_variables["documents"] = *documents;
  }
}

void read_chat(RequestFields& fields, OpenAiRequest& request) {
  read_conversation(fields.take("messages"), fields, request);
  fields.boolean_into("add_generation_prompt", request.add_generation_prompt);
  read_max_tokens(fields, 1, request);
  bool logprobs = false;
  fields.boolean_into("logprobs", logprobs);
  int top = 0;
  fields.integer_into("top_logprobs", 0, kMaxLogprobs, top);
  if (top > 0 && !logprobs)
    refuse_field("invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs' to be true");
  if (logprobs) request.sampling.logprobs = top;
  bound_logprobs(request);
}

void read_completion(RequestFields& fields, OpenAiRequest& request) {
  request.prompts = read_prompts(fields.take("prompt"));
  request.max_tokens = kCompletionTokens;
  read_max_tokens(fields, 0, request);
  fields.boolean_into("echo", request.echo);
  fields.boolean_into("add_special_tokens", request.add_special);
  fields.integer_into("logprobs", 0, kMaxLogprobs, request.sampling.logprobs);
  bound_logprobs(request);
}

}  // namespace

OpenAiRequest parse_openai_request(OpenAiRoute route, const json& body, UnknownFields unknown) {
  OpenAiRequest request;
  request.route = route;
  IgnoredFields ignored(unknown);
  RequestFields fields(body, "", ignored);
  if (const json* model = fields.try_take("model"))
    request.model = RequestFields::as_string(*model, "model");
  refuse_unsupported_fields(route, fields);
  read_choices(fields, request);
  read_client(fields, request);
  read_sampling(fields, request);
  read_stream(fields, request);
  if (route == OpenAiRoute::kChatCompletions) {
    read_chat(fields, request);
  } else {
    read_completion(fields, request);
  }
  for (const std::string_view name : kWithoutEffect) fields.skip(name);
  fields.end();
  request.ignored = ignored.take();
  return request;
}

TokenizeRequest parse_tokenize_request(const json& body, UnknownFields unknown) {
  TokenizeRequest request;
  IgnoredFields ignored(unknown);
  RequestFields fields(body, "", ignored);
  // vLLM's field is "prompt", for which BOS is added by default and control tokens are parsed, as
  // lm-eval relies on; llama-server's field is "content", without either.
  const json* const prompt = fields.try_take("prompt");
  const json* const messages = fields.try_take("messages");
  request.add_special = request.parse_special = prompt != nullptr;
  if (messages != nullptr && prompt != nullptr)
    refuse_field("invalid_value", "messages", "give 'prompt' or 'messages', not both");
  if (messages != nullptr) {
    request.chat.emplace();
    request.chat->route = OpenAiRoute::kChatCompletions;
    read_conversation(*messages, fields, *request.chat);
    fields.boolean_into("add_generation_prompt", request.chat->add_generation_prompt);
  } else {
    request.content =
        prompt != nullptr ? RequestFields::as_string(*prompt, "prompt") : fields.string("content");
  }
  fields.skip("content");
  fields.skip("model");
  fields.boolean_into("add_special", request.add_special);
  fields.boolean_into("add_special_tokens", request.add_special);
  fields.boolean_into("parse_special", request.parse_special);
  fields.boolean_into("with_pieces", request.with_pieces);
  fields.end();
  request.ignored = ignored.take();
  return request;
}

DetokenizeRequest parse_detokenize_request(const json& body, UnknownFields unknown) {
  DetokenizeRequest request;
  IgnoredFields ignored(unknown);
  RequestFields fields(body, "", ignored);
  request.tokens = read_ids(fields.take("tokens"), "tokens", "an array of token ids");
  fields.skip("model");
  fields.end();
  request.ignored = ignored.take();
  return request;
}

}  // namespace spillway
