// SPDX-License-Identifier: Apache-2.0
#include "serve/served_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "serve/api_error.h"

namespace spillway {

namespace {

// The rest of a longer text does not help to predict the length of its answer.
constexpr size_t kMostAsked = 32 << 10;

// Least limits of values and string bytes in a body. Even for a short context this much is parsed,
// so that the error can name the field that is too long.
constexpr uint64_t kLeastValues = 1 << 18;
constexpr uint64_t kLeastString = 1 << 20;

std::string last_question(const nlohmann::ordered_json& messages) {
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    if ((*message)["role"] == "user")
      return (*message)["content"].get_ref<const std::string&>().substr(0, kMostAsked);
  }
  return {};
}

}  // namespace

std::vector<std::string> questions_of(const OpenAiRequest& request) {
  if (request.route == OpenAiRoute::kChatCompletions) return {last_question(request.messages)};
  std::vector<std::string> questions;
  for (const OpenAiPrompt& prompt : request.prompts) {
    const auto* const text = std::get_if<std::string>(&prompt);
    questions.push_back(text == nullptr ? "" : text->substr(0, kMostAsked));
  }
  return questions;
}

ServedModel::ServedModel(std::string name, const Tokenizer* tokenizer, const Limits& limits,
                         std::optional<ChatTemplate> chat)
    : name_(std::move(name)), tokenizer_(tokenizer), chat_(std::move(chat)), limits_(limits) {
  if (tokenizer == nullptr) return;
  for (const VocabToken& token : tokenizer->vocabulary().tokens)
    longest_piece_ = std::max(longest_piece_, token.text.size());
}

void ServedModel::check_bytes(size_t bytes, const char* param) const {
  if (bytes / longest_piece_ <= static_cast<size_t>(max_sequence_tokens())) return;
  throw ApiError(400, "context_length_exceeded", param,
                 fmt::format("this model's maximum context length is {} tokens, which {} bytes of "
                             "'{}' exceed in any case; shorten it",
                             max_sequence_tokens(), bytes, param));
}

void ServedModel::check_tokens(size_t tokens, const char* param) const {
  if (tokens <= static_cast<size_t>(max_sequence_tokens())) return;
  throw ApiError(400, "context_length_exceeded", param,
                 fmt::format("'{}' has {} elements, and a context holds {} tokens; shorten it",
                             param, tokens, max_sequence_tokens()));
}

JsonLimits ServedModel::json_limits() const {
  const auto context = static_cast<uint64_t>(max_sequence_tokens());
  return {.values = std::max(kLeastValues, 4 * context),
          .string_bytes = std::max(kLeastString, context * longest_piece_),
          .context_tokens = max_sequence_tokens()};
}

const Tokenizer& ServedModel::require_tokenizer() const {
  if (tokenizer_ != nullptr) return *tokenizer_;
  throw ApiError(400, "unsupported_value", "", "this model has no tokenizer");
}

std::vector<EncodedPrompt> ServedModel::encode(const OpenAiRequest& request) const {
  const bool chat = request.route == OpenAiRoute::kChatCompletions;
  std::vector<EncodedPrompt> prompts;
  for (const OpenAiPrompt& prompt : request.prompts) {
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
      const bool echoed = tokenizer_ != nullptr && request.echo;
      prompts.push_back({*ids, echoed ? tokenizer_->decode(*ids) : std::string()});
      continue;
    }
    if (tokenizer_ == nullptr)
      throw ApiError(400, "unsupported_value", "prompt",
                     "this model has no tokenizer; give 'prompt' as an array of token ids");
    const std::string& text = std::get<std::string>(prompt);
    check_bytes(text.size(), "prompt");
    prompts.push_back({tokenizer_->encode(text, {.add_special = request.add_special}), text});
  }
  if (chat) prompts.push_back({encode_chat(request), {}});
  std::vector<std::string> questions = questions_of(request);
  for (size_t i = 0; i < prompts.size(); ++i) prompts[i].asked = std::move(questions[i]);
  return prompts;
}

std::vector<TokenId> ServedModel::encode_chat(const OpenAiRequest& request) const {
  if (tokenizer_ == nullptr)
    throw ApiError(400, "unsupported_value", "messages",
                   "this model has no tokenizer; give 'prompt' as an array of token ids to "
                   "/v1/completions");
  if (!chat_)
    throw ApiError(400, "unsupported_value", "messages",
                   "this model has no chat template; choose one with --template, or use "
                   "/v1/completions");
  check_tokens(request.messages.size(), "messages");  // each message has at least one token
  size_t bytes = 0;
  for (const nlohmann::ordered_json& message : request.messages)
    bytes += message["content"].get_ref<const std::string&>().size();
  check_bytes(bytes, "messages");
  try {
    const auto segments = chat_->render({.messages = request.messages,
                                         .tools = request.tools,
                                         .variables = request.template_variables,
                                         .add_generation_prompt = request.add_generation_prompt});
    return tokenizer_->encode_segments(segments, {.add_special = false});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw ApiError(400, "invalid_value", "messages", error.what());
  }
}

// The engine would refuse these tokens, too, but does not know which field they came from.
void ServedModel::check_ids(const OpenAiRequest& request,
                            const std::vector<TokenId>& prompt) const {
  const auto check = [&](TokenId id, const std::string& param) {
    if (id >= 0 && id < limits_.vocab_size) return;
    throw ApiError(400, "invalid_value", param,
                   fmt::format("'{}': token id {} is outside the model's vocabulary of {} tokens",
                               param, id, limits_.vocab_size));
  };
  const char* const asked = request.route == OpenAiRoute::kChatCompletions ? "messages" : "prompt";
  if (prompt.empty())
    throw ApiError(400, "invalid_value", asked,
                   fmt::format("'{}' is empty; give at least one token", asked));
  for (const TokenId id : prompt) check(id, asked);
  for (const auto& [id, bias] : request.sampling.logit_bias)
    check(id, fmt::format("logit_bias.{}", id));
  for (const TokenId id : request.stop_ids) check(id, "stop_token_ids");
}

GenerationRequest ServedModel::to_generation(const OpenAiRequest& request,
                                             const EncodedPrompt& prompt) const {
  GenerationRequest out;
  out.prompt = prompt.ids;
  out.asked = prompt.asked;
  check_ids(request, prompt.ids);
  out.max_tokens = request.max_tokens.value_or(std::numeric_limits<int>::max());
  const auto prompt_tokens = static_cast<int64_t>(out.prompt.size());
  if (prompt_tokens + (out.max_tokens > 0 ? 1 : 0) > max_sequence_tokens())
    throw ApiError(400, "context_length_exceeded",
                   request.route == OpenAiRoute::kChatCompletions ? "messages" : "prompt",
                   fmt::format("this model's maximum context length is {} tokens, but the prompt "
                               "has {} and needs room for at least one more; shorten it",
                               max_sequence_tokens(), prompt_tokens));
  if (!request.stop.empty() && tokenizer_ == nullptr)
    throw ApiError(400, "unsupported_value", "stop",
                   "this model has no tokenizer, so there is no text to stop at");
  out.sampling = request.sampling;
  if (request.echo && request.sampling.logprobs >= 0)
    out.prompt_logprobs = request.sampling.logprobs;
  out.stop = request.stop;
  out.stop_ids = request.stop_ids;
  out.min_tokens = request.min_tokens;
  out.ignore_end = request.ignore_end;
  out.priority = request.priority;
  out.cache_salt = request.cache_salt;
  return out;
}

}  // namespace spillway
