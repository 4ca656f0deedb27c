// SPDX-License-Identifier: Apache-2.0
#include "serve/served_model.h"

#include <fmt/core.h>

#include <limits>
#include <utility>

#include "serve/api_error.h"

namespace spillway {

ServedModel::ServedModel(std::string name, const Tokenizer* tokenizer, int64_t max_sequence_tokens,
                         std::optional<ChatTemplate> chat)
    : name_(std::move(name)),
      tokenizer_(tokenizer),
      chat_(std::move(chat)),
      max_sequence_tokens_(max_sequence_tokens) {
  if (!chat_ && tokenizer != nullptr) chat_ = try_detect_chat_template(tokenizer->vocabulary());
}

std::vector<TokenId> ServedModel::encode(const OpenAiRequest& request) const {
  const bool chat = request.route == OpenAiRoute::kChatCompletions;
  if (!chat && std::holds_alternative<std::vector<TokenId>>(request.prompt))
    return std::get<std::vector<TokenId>>(request.prompt);
  if (tokenizer_ == nullptr)
    throw ApiError(400, "unsupported_value", chat ? "messages" : "prompt",
                   "this model has no tokenizer; give 'prompt' as an array of token ids to "
                   "/v1/completions");
  if (!chat) return tokenizer_->encode(std::get<std::string>(request.prompt));
  if (!chat_)
    throw ApiError(400, "unsupported_value", "messages",
                   tokenizer_->vocabulary().chat_template.empty()
                       ? "this model has no chat template; choose one with --template, or use "
                         "/v1/completions"
                       : "this model's chat template is of an unknown kind; choose the one that "
                         "comes closest with --template, or use /v1/completions");
  try {
    const auto segments = render_chat_segments(*chat_, request.messages, true);
    return tokenizer_->encode_segments(segments, {.add_special = false});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw ApiError(400, "invalid_value", "messages", error.what());
  }
}

GenerationRequest ServedModel::to_generation(const OpenAiRequest& request,
                                             uint64_t default_seed) const {
  GenerationRequest out;
  out.prompt = encode(request);
  const auto prompt_tokens = static_cast<int64_t>(out.prompt.size());
  if (prompt_tokens >= max_sequence_tokens_)
    throw ApiError(400, "context_length_exceeded",
                   request.route == OpenAiRoute::kChatCompletions ? "messages" : "prompt",
                   fmt::format("the prompt has {} tokens and needs room for at least one more, but "
                               "the context has {}; shorten it",
                               prompt_tokens, max_sequence_tokens_));
  if (!request.stop.empty() && tokenizer_ == nullptr)
    throw ApiError(400, "unsupported_value", "stop",
                   "this model has no tokenizer, so there is no text to stop at");
  out.max_tokens = request.max_tokens.value_or(std::numeric_limits<int>::max());
  out.sampling = request.sampling;
  out.sampling.seed = request.seed.value_or(default_seed);
  out.stop = request.stop;
  out.ignore_end = request.ignore_end;
  return out;
}

}  // namespace spillway
