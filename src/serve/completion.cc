// SPDX-License-Identifier: Apache-2.0
#include "serve/completion.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api_error.h"

namespace spillway {

Completion::Completion(OpenAiRequest request, const ServedModel& model, uint64_t default_seed)
    : request_(std::move(request)), model_(&model) {
  constexpr size_t kMostChoices = 1024, kMostTokens = 1 << 24;
  const size_t choices =
      std::max<size_t>(1, request_.prompts.size()) * static_cast<size_t>(request_.choices);
  if (choices > kMostChoices)
    throw ApiError(400, "invalid_value", "n",
                   fmt::format("{} choices are too many; give at most {} in a request", choices,
                               kMostChoices));
  const std::vector<EncodedPrompt> prompts = model.encode(request_);
  size_t tokens = 0;  // each choice has its own copy of the prompt
  for (const EncodedPrompt& prompt : prompts)
    tokens += prompt.ids.size() * static_cast<size_t>(request_.choices);
  if (tokens > kMostTokens)
    throw ApiError(400, "invalid_value", request_.choices > 1 ? "n" : "prompt",
                   fmt::format("{} tokens of prompts, over all choices, are too many; give at most "
                               "{} in a request",
                               tokens, kMostTokens));
  const uint64_t seed = request_.seed.value_or(default_seed);
  for (const EncodedPrompt& prompt : prompts) {
    prompt_tokens_ += prompt.ids.size();
    for (int i = 0; i < request_.choices; ++i) {
      Choice& choice = choices_.emplace_back();
      choice.index = choices_.size() - 1;
      if (request_.echo) {
        choice.prompt_ids = prompt.ids;
        choice.prompt_text = prompt.text;
      }
      GenerationRequest generation = model.to_generation(request_, prompt);
      generation.sampling.seed = seed + choice.index;
      if (generation.max_tokens > 0 || generation.prompt_logprobs >= 0)
        generations_.push_back(std::move(generation));
    }
  }
  // Frees the conversation, which can be megabytes and is tokenized by now.
  request_.messages = request_.tools = request_.template_variables = nullptr;
  request_.prompts.clear();
  if (!generations_.empty()) return;
  for (Choice& choice : choices_) choice.finish = FinishReason::kLength;
  ended_ = choices_.size();
}

bool Completion::add(size_t index, const GenerationEvent& event) {
  if (choices_[index].add(event)) ++ended_;
  return ended_ == choices_.size();
}

const Choice* Completion::failed() const {
  for (const Choice& choice : choices_)
    if (choice.finish == FinishReason::kError) return &choice;
  return nullptr;
}

Usage Completion::usage() const {
  Usage usage{.prompt_tokens = prompt_tokens_};
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.ids.size();
    usage.draft_accepted += choice.draft_accepted;
    usage.draft_rejected += choice.draft_rejected;
  }
  // A prompt counts once, however many choices it has: only tokens that none of them computed are
  // cached.
  const auto each = static_cast<size_t>(request_.choices);
  usage.cached_tokens = 0;
  for (size_t first = 0; first < choices_.size(); first += each) {
    size_t cached = choices_[first].reused_tokens;
    for (size_t i = 1; i < each; ++i) cached = std::min(cached, choices_[first + i].reused_tokens);
    *usage.cached_tokens += cached;
  }
  return usage;
}

nlohmann::ordered_json Completion::body(const AnswerHead& head, const Usage& usage) const {
  return answer_body(head, request_, choices_, usage, model_->tokenizer());
}

}  // namespace spillway
