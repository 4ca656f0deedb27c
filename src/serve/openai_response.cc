// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_response.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace spillway {

namespace {

using nlohmann::ordered_json;

ordered_json token_bytes(TokenId id, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return nullptr;
  ordered_json bytes = ordered_json::array();
  for (const char c : tokenizer->piece(id)) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

ordered_json chat_logprob(const TokenLogprob& entry, const Tokenizer* tokenizer) {
  return {{"token", token_text(entry.id, tokenizer)},
          {"logprob", shown_logprob(entry.logprob)},
          {"bytes", token_bytes(entry.id, tokenizer)}};
}

// Returns the number of tokens to show: an end token is left out, since it is not part of the text.
size_t shown_tokens(const Choice& choice, const OpenAiRequest& request,
                    const Tokenizer* tokenizer) {
  const size_t count = std::min(choice.ids.size(), choice.logprobs.size());
  if (tokenizer == nullptr || count == 0) return count;
  const TokenId last = choice.ids[count - 1];
  const bool ended = (!request.ignore_end && tokenizer->is_end_of_generation(last)) ||
                     std::ranges::find(request.stop_ids, last) != request.stop_ids.end();
  return ended ? count - 1 : count;
}

ordered_json chat_logprobs(const Choice& choice, size_t first, size_t end,
                           const Tokenizer* tokenizer) {
  ordered_json content = ordered_json::array();
  for (size_t i = first; i < end; ++i) {
    const Logprobs& logprobs = choice.logprobs[i];
    ordered_json entry = chat_logprob({choice.ids[i], logprobs.chosen}, tokenizer);
    entry["top_logprobs"] = ordered_json::array();
    for (const TokenLogprob& top : logprobs.top)
      entry["top_logprobs"].push_back(chat_logprob(top, tokenizer));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

void add_prompt(const Choice& choice, CompletionLogprobs& lists, TextOffset& offset) {
  lists.begin_prompt();
  for (size_t i = 0; i < choice.prompt_ids.size(); ++i) {
    const bool said = i > 0 && i <= choice.prompt_logprobs.size();
    lists.add(choice.prompt_ids[i], said ? &choice.prompt_logprobs[i - 1] : nullptr);
  }
  offset.end_part();
}

ordered_json completion_logprobs(const Choice& choice, size_t count, const Tokenizer* tokenizer) {
  TextOffset offset;
  CompletionLogprobs lists(tokenizer, offset);
  if (!choice.prompt_ids.empty()) add_prompt(choice, lists, offset);
  for (size_t i = 0; i < count; ++i) lists.add(choice.ids[i], &choice.logprobs[i]);
  return lists.take();
}

ordered_json choice_json(const Choice& choice, const OpenAiRequest& request,
                         const Tokenizer* tokenizer) {
  const bool chat = request.route == OpenAiRoute::kChatCompletions;
  ordered_json out = {{"index", choice.index}};
  if (chat) {
    out["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
  } else {
    out["text"] = choice.prompt_text + choice.text;
  }
  if (tokenizer == nullptr) out["token_ids"] = choice.ids;
  out["logprobs"] = nullptr;
  if (request.sampling.logprobs >= 0) {
    const size_t count = shown_tokens(choice, request, tokenizer);
    out["logprobs"] = chat ? chat_logprobs(choice, 0, count, tokenizer)
                           : completion_logprobs(choice, count, tokenizer);
  }
  out["finish_reason"] = finish_reason_name(choice.finish);
  return out;
}

ordered_json usage_json(const Usage& usage) {
  ordered_json body = {{"prompt_tokens", usage.prompt_tokens},
                       {"completion_tokens", usage.completion_tokens},
                       {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  if (usage.cached_tokens)
    body["prompt_tokens_details"] = {{"cached_tokens", *usage.cached_tokens}};
  if (usage.draft_accepted + usage.draft_rejected > 0)
    body["completion_tokens_details"] = {{"accepted_prediction_tokens", usage.draft_accepted},
                                         {"rejected_prediction_tokens", usage.draft_rejected}};
  return body;
}

}  // namespace

bool Choice::add(const GenerationEvent& event) {
  if (event.token) ids.push_back(*event.token);
  text += event.text;
  if (event.logprobs) logprobs.push_back(*event.logprobs);
  prompt_logprobs.insert(prompt_logprobs.end(), event.prompt_logprobs.begin(),
                         event.prompt_logprobs.end());
  if (!event.finish) return false;
  finish = *event.finish;
  error = event.error;
  reused_tokens = static_cast<size_t>(event.reused_tokens);
  draft_accepted = static_cast<size_t>(event.draft_accepted);
  draft_rejected = static_cast<size_t>(event.draft_rejected);
  return true;
}

std::string answer_id(OpenAiRoute route, const std::string& number) {
  return (route == OpenAiRoute::kChatCompletions ? "chatcmpl-" : "cmpl-") + number;
}

ordered_json answer_body(const AnswerHead& head, const OpenAiRequest& request,
                         const std::vector<Choice>& choices, const Usage& usage,
                         const Tokenizer* tokenizer) {
  const bool chat = request.route == OpenAiRoute::kChatCompletions;
  ordered_json list = ordered_json::array();
  for (const Choice& choice : choices) list.push_back(choice_json(choice, request, tokenizer));
  ordered_json body = {{"id", head.id},
                       {"object", chat ? "chat.completion" : "text_completion"},
                       {"created", head.created},
                       {"model", head.model},
                       {"choices", std::move(list)},
                       {"usage", usage_json(usage)}};
  if (!head.fingerprint.empty()) body["system_fingerprint"] = head.fingerprint;
  return body;
}

namespace {

// Formats a string as JSON.
std::string json_string(const std::string& text) { return json_line(text); }

}  // namespace

AnswerStream::AnswerStream(const AnswerHead& head, const OpenAiRequest& request,
                           const Tokenizer* tokenizer, size_t prompt_tokens)
    : request_(request),
      tokenizer_(tokenizer),
      chat_(request.route == OpenAiRoute::kChatCompletions),
      usage_{.prompt_tokens = prompt_tokens} {
  head_ = fmt::format(R"(data: {{"id":{},"object":"{}","created":{},"model":{},)",
                      json_string(head.id), chat_ ? "chat.completion.chunk" : "text_completion",
                      head.created, json_string(head.model));
  if (!head.fingerprint.empty())
    head_ += fmt::format(R"("system_fingerprint":{},)", json_string(head.fingerprint));
}

std::string AnswerStream::chunk(size_t index, const std::string& delta, const std::string& logprobs,
                                const char* finish) const {
  return fmt::format(R"({}"choices":[{{"index":{},{},"logprobs":{},"finish_reason":{}}}]{}}})"
                     "\n\n",
                     head_, index, delta, logprobs.empty() ? "null" : logprobs,
                     finish == nullptr ? "null" : fmt::format("\"{}\"", finish), usage_so_far());
}

std::string AnswerStream::usage_so_far() const {
  if (!request_.stream_usage) return "";
  if (!request_.continuous_usage) return R"(,"usage":null)";
  return ",\"usage\":" + json_line(usage_json(usage_));
}

std::string AnswerStream::begin(const Choice& choice) {
  if (chat_)
    return chunk(choice.index, R"("delta":{"role":"assistant","content":"","refusal":null})", "",
                 nullptr);
  // With logprobs, the prompt is echoed later, when those of its tokens are known.
  if (choice.prompt_text.empty() || request_.sampling.logprobs >= 0) return "";
  return chunk(choice.index, "\"text\":" + json_string(choice.prompt_text), "", nullptr);
}

std::string AnswerStream::piece(const Choice& choice, const GenerationEvent& event) {
  if (choice.index >= told_logprobs_.size()) {
    told_logprobs_.resize(choice.index + 1);
    offsets_.resize(choice.index + 1);
  }
  if (event.token) ++usage_.completion_tokens;
  size_t& told = told_logprobs_[choice.index];
  std::string text = event.text, logprobs;
  if (request_.sampling.logprobs >= 0) {
    const size_t count = shown_tokens(choice, request_, tokenizer_);
    const bool first =
        !chat_ && told == 0 && !choice.prompt_ids.empty() && (event.token || event.finish);
    if (chat_ && count > told) {
      logprobs = json_line(chat_logprobs(choice, told, count, tokenizer_));
    } else if (!chat_ && (count > told || first)) {
      CompletionLogprobs lists(tokenizer_, offsets_[choice.index]);
      if (first) add_prompt(choice, lists, offsets_[choice.index]);
      for (size_t i = told; i < count; ++i) lists.add(choice.ids[i], &choice.logprobs[i]);
      logprobs = json_line(lists.take());
      if (first) text = choice.prompt_text + text;
    }
    told = std::max(told, count);
  }
  const bool says = !text.empty() || !logprobs.empty() || (tokenizer_ == nullptr && event.token);
  if (!says && !event.finish) return "";
  std::string delta =
      chat_ ? says ? "\"delta\":{\"content\":" + json_string(text) + "}" : "\"delta\":{}"
            : "\"text\":" + json_string(text);
  if (tokenizer_ == nullptr && event.token)
    delta += fmt::format(R"(,"token_ids":[{}])", *event.token);
  // In a chat stream, the last text comes in a chunk before the one that ends the choice.
  if (chat_ && event.finish && says)
    return chunk(choice.index, delta, logprobs, nullptr) +
           chunk(choice.index, "\"delta\":{}", "", finish_reason_name(*event.finish));
  return chunk(choice.index, delta, logprobs,
               event.finish ? finish_reason_name(*event.finish) : nullptr);
}

std::string AnswerStream::end(const Usage& usage) {
  std::string text;
  if (request_.stream_usage)
    text = head_ + "\"choices\":[],\"usage\":" + json_line(usage_json(usage)) + "}\n\n";
  return text + "data: [DONE]\n\n";
}

std::string AnswerStream::error(const ApiError& error) {
  return "data: " + json_line(error_body(error)) + "\n\n";
}

}  // namespace spillway
