// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_reply.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "serve/http/http_text.h"
#include "serve/http/json_text.h"
#include "serve/http/reply_state.h"

namespace spillway {
namespace {

using Kind = ReplyMessage::Kind;
using Phase = ReplyState::Phase;

// A handler that copies a client's text into a header must not let it add further headers.
void check_answer(const HttpAnswer& answer) {
  SPW_CHECK(answer.status >= 200 && answer.status <= 599, kInternal, "HTTP status {}",
            answer.status);
  SPW_CHECK(is_header_value(answer.content_type), kInternal,
            "a content type with control characters");
  for (const HttpHeader& header : answer.headers)
    SPW_CHECK(is_http_token(header.name) && is_header_value(header.value), kInternal,
              "a header that would break out of its line");
}

bool push(const std::shared_ptr<ReplyState>& state, Kind kind, HttpAnswer answer) {
  return state->inbox->push({state, kind, {}, std::make_unique<HttpAnswer>(std::move(answer))});
}

// Adds the message that carries a chunk, or the one that reports a too slow client; adds none if
// the client is gone.
bool add_chunk(const std::shared_ptr<ReplyState>& state, std::string chunk,
               std::vector<ReplyMessage>& messages) {
  SPW_CHECK(state->phase.load() == Phase::kStreaming, kInternal, "a chunk outside of a stream");
  if (chunk.empty()) return !state->is_gone.load();
  switch (state->reserve(chunk.size())) {
    case ReplyState::Room::kTaken:
      messages.push_back({state, Kind::kChunk, std::move(chunk)});
      return true;
    case ReplyState::Room::kTooMuch:
      messages.push_back({state, Kind::kTooSlow});
      return false;
    case ReplyState::Room::kGone:
      break;
  }
  return false;
}

}  // namespace

HttpReply::~HttpReply() {
  if (state_->phase.exchange(Phase::kComplete) == Phase::kComplete) return;
  try {
    state_->inbox->push({state_, Kind::kAbandoned});
  } catch (const std::exception& error) {
    log_warning("http: a reply was dropped: {}", error.what());
  }
}

bool HttpReply::send(HttpAnswer answer) {
  check_answer(answer);
  state_->advance(Phase::kWaiting, Phase::kComplete);
  return !is_gone() && push(state_, Kind::kAnswer, std::move(answer));
}

bool HttpReply::send_error(const ApiError& error, std::vector<HttpHeader> headers) {
  return send(error_answer(error, std::move(headers)));
}

bool HttpReply::begin_stream(int status, std::string_view content_type,
                             std::vector<HttpHeader> headers) {
  HttpAnswer head = {status, std::string(content_type), {}, std::move(headers)};
  check_answer(head);
  state_->advance(Phase::kWaiting, Phase::kStreaming);
  return !is_gone() && push(state_, Kind::kBegin, std::move(head));
}

bool HttpReply::write(std::string chunk) {
  std::vector<ReplyMessage> message;
  const bool taken = add_chunk(state_, std::move(chunk), message);
  return state_->inbox->push_all(message) && taken;
}

bool HttpReply::finish() {
  state_->advance(Phase::kStreaming, Phase::kComplete);
  return !is_gone() && state_->inbox->push({state_, Kind::kFinish});
}

void HttpReply::on_gone(std::function<void()> callback) {
  state_->set_on_gone(std::move(callback));
}
bool HttpReply::is_gone() const { return state_->is_gone.load(); }

StreamBatch::StreamBatch() = default;
StreamBatch::~StreamBatch() = default;

bool StreamBatch::write(const HttpReply& reply, std::string chunk) {
  return add_chunk(reply.state_, std::move(chunk), messages_for(*reply.state_));
}

bool StreamBatch::finish(const HttpReply& reply) {
  reply.state_->advance(Phase::kStreaming, Phase::kComplete);
  if (reply.is_gone()) return false;
  messages_for(*reply.state_).push_back({reply.state_, Kind::kFinish});
  return true;
}

void StreamBatch::hand_over() {
  for (Group& group : groups_) group.inbox->push_all(group.messages);
}

std::vector<ReplyMessage>& StreamBatch::messages_for(const ReplyState& state) {
  for (Group& group : groups_) {
    if (group.inbox == state.inbox) return group.messages;
  }
  return groups_.emplace_back(Group{state.inbox, {}}).messages;
}

HttpAnswer json_answer(int status, std::string body) {
  return {status, "application/json", std::move(body), {}};
}

HttpAnswer error_answer(const ApiError& error, std::vector<HttpHeader> headers) {
  HttpAnswer answer = json_answer(error.status(), json_line(error_body(error)));
  answer.headers = std::move(headers);
  // Clients that should retry are told when.
  const bool later = error.status() == 429 || error.status() == 503;
  const auto says_when = [](const HttpHeader& header) { return header.name == "Retry-After"; };
  if (later && std::ranges::none_of(answer.headers, says_when))
    answer.headers.push_back({"Retry-After", "1"});
  return answer;
}

}  // namespace spillway
