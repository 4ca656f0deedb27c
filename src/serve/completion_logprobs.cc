// SPDX-License-Identifier: Apache-2.0
#include "serve/completion_logprobs.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <utility>

#include "text/utf8.h"

namespace spillway {
namespace {

using nlohmann::ordered_json;

// Writes bytes as Python does, which is how OpenAI names tokens that are not text.
std::string spelled_bytes(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    if (c == '\\') {
      text += "\\\\";
    } else if (c >= 0x20 && c < 0x7F) {
      text += c;
    } else {
      fmt::format_to(std::back_inserter(text), "\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text;
}

std::string id_text(TokenId id) { return fmt::format("token_id:{}", id); }

// /v1/completions has no other field for a token's bytes, so its name tells that they are bytes.
std::string completion_token(TokenId id, const Tokenizer* tokenizer) {
  const bool is_part = tokenizer != nullptr && !is_valid_utf8(tokenizer->piece(id));
  return (is_part ? "bytes:" : "") + token_text(id, tokenizer);
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += decode_utf8(text, at).bytes;
  return count;
}

}  // namespace

std::string token_text(TokenId id, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return id_text(id);
  const std::string_view piece = tokenizer->piece(id);
  if (piece.empty()) return replace_invalid_utf8(tokenizer->spelling(id));
  return is_valid_utf8(piece) ? std::string(piece) : spelled_bytes(piece);
}

float shown_logprob(float logprob) { return std::isfinite(logprob) ? logprob : -9999; }

size_t TextOffset::advance(std::string_view bytes) {
  const std::string before = begun_;
  const size_t characters = characters_;
  begun_ += bytes;
  const size_t complete = begun_.size() - truncated_utf8_suffix_bytes(begun_);
  characters_ += count_characters(std::string_view(begun_).substr(0, complete));
  // If the bytes do not continue the character that was begun, they begin another one.
  const bool goes_on =
      bytes.empty() || before.empty() || decode_utf8(begun_, 0).bytes > before.size();
  begun_.erase(0, complete);
  return goes_on ? characters : characters + 1;
}

void TextOffset::end_part() {
  characters_ += count_characters(begun_);
  begun_.clear();
}

void CompletionLogprobs::add(TokenId id, const Logprobs* logprobs) {
  tokens_.push_back(completion_token(id, tokenizer_));
  // Control tokens are not part of the text.
  std::string_view piece = tokenizer_ == nullptr ? std::string_view() : tokenizer_->piece(id);
  if (!piece.empty() && std::exchange(strips_space_, false) && piece.front() == ' ')
    piece.remove_prefix(1);
  offsets_.push_back(offset_.advance(piece));
  if (logprobs == nullptr) {
    chosen_.push_back(nullptr);
    tops_.push_back(nullptr);
    return;
  }
  chosen_.push_back(shown_logprob(logprobs->chosen));
  ordered_json top = ordered_json::object();
  for (const TokenLogprob& entry : logprobs->top) {
    // Two tokens of a vocabulary may have the same text; the likelier one comes first and gets it
    // as its name.
    std::string name = completion_token(entry.id, tokenizer_);
    if (top.contains(name)) name = id_text(entry.id);
    top[name] = shown_logprob(entry.logprob);
  }
  tops_.push_back(std::move(top));
}

ordered_json CompletionLogprobs::take() {
  return {{"tokens", std::move(tokens_)},
          {"token_logprobs", std::move(chosen_)},
          {"top_logprobs", std::move(tops_)},
          {"text_offset", std::move(offsets_)}};
}

}  // namespace spillway
