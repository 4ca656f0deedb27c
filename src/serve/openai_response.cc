// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_response.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace spillway {
namespace {

using nlohmann::ordered_json;

// A token as logprobs show it; its bytes need not be whole characters.
std::string token_text(TokenId id, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return fmt::format("token_id:{}", id);
  const std::string_view piece = tokenizer->piece(id);
  return replace_invalid_utf8(piece.empty() ? tokenizer->spelling(id) : piece);
}

ordered_json token_bytes(TokenId id, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return nullptr;
  ordered_json bytes = ordered_json::array();
  for (const char c : tokenizer->piece(id)) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

// JSON has no infinity; this is what OpenAI writes where a token is next to impossible.
float shown_logprob(float logprob) { return std::isfinite(logprob) ? logprob : -9999; }

ordered_json chat_logprob(const TokenLogprob& entry, const Tokenizer* tokenizer) {
  return {{"token", token_text(entry.id, tokenizer)},
          {"logprob", shown_logprob(entry.logprob)},
          {"bytes", token_bytes(entry.id, tokenizer)}};
}

// The end token is no part of the text, so logprobs leave it out.
size_t shown_tokens(const Answer& answer, const OpenAiRequest& request,
                    const Tokenizer* tokenizer) {
  const size_t count = std::min(answer.ids.size(), answer.logprobs.size());
  const bool ended = tokenizer != nullptr && !request.ignore_end && count > 0 &&
                     tokenizer->is_end_of_generation(answer.ids[count - 1]);
  return ended ? count - 1 : count;
}

ordered_json chat_logprobs(const Answer& answer, size_t count, const Tokenizer* tokenizer) {
  ordered_json content = ordered_json::array();
  for (size_t i = 0; i < count; ++i) {
    const Logprobs& logprobs = answer.logprobs[i];
    ordered_json entry = chat_logprob({answer.ids[i], logprobs.chosen}, tokenizer);
    entry["top_logprobs"] = ordered_json::array();
    for (const TokenLogprob& top : logprobs.top)
      entry["top_logprobs"].push_back(chat_logprob(top, tokenizer));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

ordered_json completion_logprobs(const Answer& answer, size_t count, const Tokenizer* tokenizer) {
  ordered_json tokens = ordered_json::array(), chosen = tokens, tops = tokens, offsets = tokens;
  size_t offset = 0;  // in characters, as OpenAI counts
  for (size_t i = 0; i < count; ++i) {
    const std::string text = token_text(answer.ids[i], tokenizer);
    ordered_json top = ordered_json::object();
    for (const TokenLogprob& entry : answer.logprobs[i].top)
      top[token_text(entry.id, tokenizer)] = shown_logprob(entry.logprob);
    tokens.push_back(text);
    chosen.push_back(shown_logprob(answer.logprobs[i].chosen));
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    for (const char c : text) offset += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }
  return {{"tokens", tokens},
          {"token_logprobs", chosen},
          {"top_logprobs", tops},
          {"text_offset", offsets}};
}

}  // namespace

bool Answer::add(const GenerationEvent& event) {
  if (event.token) ids.push_back(*event.token);
  text += event.text;
  if (event.logprobs) logprobs.push_back(*event.logprobs);
  if (!event.finish) return false;
  finish = *event.finish;
  error = event.error;
  return true;
}

ordered_json answer_body(const AnswerHead& head, const OpenAiRequest& request, size_t prompt_tokens,
                         const Answer& answer, const Tokenizer* tokenizer) {
  const bool chat = request.route == OpenAiRoute::kChatCompletions;
  ordered_json choice = {{"index", 0}};
  if (chat) {
    choice["message"] = {{"role", "assistant"}, {"content", answer.text}, {"refusal", nullptr}};
  } else {
    choice["text"] = answer.text;
  }
  if (tokenizer == nullptr) choice["token_ids"] = answer.ids;
  choice["logprobs"] = nullptr;
  if (request.sampling.logprobs >= 0) {
    const size_t count = shown_tokens(answer, request, tokenizer);
    choice["logprobs"] = chat ? chat_logprobs(answer, count, tokenizer)
                              : completion_logprobs(answer, count, tokenizer);
  }
  choice["finish_reason"] = finish_reason_name(answer.finish);

  const size_t generated = answer.ids.size();
  ordered_json body = {{"id", (chat ? "chatcmpl-" : "cmpl-") + head.id},
                       {"object", chat ? "chat.completion" : "text_completion"},
                       {"created", head.created},
                       {"model", head.model},
                       {"choices", ordered_json::array({std::move(choice)})},
                       {"usage",
                        {{"prompt_tokens", prompt_tokens},
                         {"completion_tokens", generated},
                         {"total_tokens", prompt_tokens + generated}}}};
  if (!head.fingerprint.empty()) body["system_fingerprint"] = head.fingerprint;
  return body;
}

ordered_json error_body(const ApiError& error) {
  ordered_json param = nullptr;
  if (!error.param().empty()) param = error.param();
  return {{"error",
           {{"message", error.what()},
            {"type", error.type()},
            {"param", std::move(param)},
            {"code", error.code_name()}}}};
}

std::string json_line(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace spillway
