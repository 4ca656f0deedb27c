// SPDX-License-Identifier: Apache-2.0
#include "cli/server_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/stopwatch.h"
#include "serve/http/event_reader.h"

namespace spillway {
namespace {

constexpr size_t kMostListBytes = 16 << 20;
constexpr size_t kMostErrorBytes = 64 << 10;
constexpr size_t kMostEventBytes = 4 << 20;
constexpr size_t kMostAnswerBytes = 64 << 20;
constexpr size_t kShownModels = 8;
constexpr size_t kBytesPerToken = 3;  // a low estimate for text whose tokens are not counted yet

size_t bytes_of(const Conversation& conversation) {
  size_t bytes = 0;
  for (const ChatMessage& message : conversation.messages()) bytes += message.content.size();
  return bytes;
}

// True if the same request may succeed at another time.
bool is_busy(int status) { return status == 408 || status == 429 || status >= 500; }

}  // namespace

ServerSource::ServerSource(Options options, const std::atomic<bool>& cancel,
                           HttpClientLimits limits)
    : options_(std::move(options)), client_(api_url(options_.url), cancel, limits) {
  if (!options_.key.empty() && !options_.url.is_this_machine())
    log_warning("the API key goes to {} without encryption", options_.url.host);
  if (options_.sampling.seed) seed_ = options_.sampling.choose_seed();
  choose_model();
  // Throws now, rather than later, for flags that the server does not take.
  sampling_fields(options_.sampling, model_.kind);
}

HttpUrl ServerSource::api_url(HttpUrl url) {
  if (!url.path.ends_with("/v1")) url.path += "/v1";
  return url;
}

std::string ServerSource::name() const {
  return fmt::format("{} at http://{}", printable(model_.id), options_.url.authority());
}

std::vector<HttpHeader> ServerSource::headers() const {
  if (options_.key.empty()) return {};
  return {{"Authorization", "Bearer " + options_.key}};
}

std::vector<ServerModel> ServerSource::list_models() const {
  HttpResponse response = client_.get("/models", headers());
  if (response.status() == 200) return parse_model_list(response.read_up_to(kMostListBytes));
  // Some servers have no list of models; if the model's name is given, none is needed.
  if (response.status() == 404 && !options_.model.empty()) return {};
  refuse(parse_refusal(response.status(), response.read_up_to(kMostErrorBytes)));
}

void ServerSource::choose_model() {
  models_ = list_models();
  SPW_CHECK(!options_.model.empty() || !models_.empty(), kInvalidArgument,
            "the server lists no models; name one behind --server URL");
  if (!models_.empty()) model_ = models_.front();
  if (options_.model.empty() || options_.model == model_.id) return;
  model_.id = options_.model;
  model_.context.reset();
  for (const ServerModel& model : models_) {
    if (model.id == model_.id) model_ = model;
  }
}

std::string ServerSource::request_body(const Conversation& conversation) const {
  nlohmann::ordered_json body = {{"model", model_.id},
                                 {"messages", messages_to_json(conversation.messages())},
                                 {"stream", true},
                                 {"stream_options", {{"include_usage", true}}}};
  // Some servers refuse more than they have room for; without the field they use what the context
  // allows.
  if (options_.max_tokens_given || !model_.context || options_.max_tokens <= *model_.context / 4)
    body["max_tokens"] = options_.max_tokens;
  if (seed_) body["seed"] = *seed_;
  body.update(sampling_fields(options_.sampling, model_.kind));
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// The server's tokens cannot be counted here: the last answer gave their number, and the rest is
// estimated. If the estimate is wrong, the server says so.
void ServerSource::make_room(Conversation& conversation, const AnswerListener& listener) const {
  if (!known_ || !model_.context || known_->bytes == 0) return;
  const size_t question = conversation.messages().back().content.size();
  size_t bytes = bytes_of(conversation);
  if (bytes - question != known_->bytes) return;  // the conversation was cleared or changed since
  const double tokens_per_byte =
      static_cast<double>(known_->tokens) / static_cast<double>(known_->bytes);
  const auto context = static_cast<double>(*model_.context);
  const double reserve = std::min<double>(options_.max_tokens, context / 4);
  double tokens = static_cast<double>(known_->tokens + question / kBytesPerToken);
  while (tokens + reserve > context && conversation.forget_oldest()) {
    listener.warn(kForgetsTheOldest);
    const size_t left = bytes_of(conversation);
    tokens -= static_cast<double>(bytes - left) * tokens_per_byte;
    bytes = left;
  }
}

ChatAnswer ServerSource::answer(Conversation& conversation, const AnswerListener& listener) {
  ChatAnswer answer{.tokens_are_counted = false, .context = model_.context};
  make_room(conversation, listener);
  since_asked_ = Stopwatch();
  try {
    while (true) {
      HttpResponse response =
          client_.post("/chat/completions", headers(), request_body(conversation));
      if (response.status() == 200) {
        read_answer(response, listener, answer);
        break;
      }
      const ServerRefusal refusal =
          parse_refusal(response.status(), response.read_up_to(kMostErrorBytes));
      if (!refusal.context_is_full || !conversation.forget_oldest()) refuse(refusal);
      listener.warn(kForgetsTheOldest);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
    answer.finish = FinishReason::kCancelled;
  }
  if (seed_) ++*seed_;  // the same question again gets another answer
  known_.reset();
  if (answer.prompt_tokens && answer.tokens_are_counted)
    known_ = {bytes_of(conversation) + answer.text.size(), *answer.prompt_tokens + answer.tokens};
  return answer;
}

// Fills `answer` as it comes, so that an interrupted answer has all that came before.
void ServerSource::read_answer(HttpResponse& response, const AnswerListener& listener,
                               ChatAnswer& answer) {
  SPW_CHECK(response.header("content-type").starts_with("text/event-stream"), kIo,
            "the server does not stream its answer; is it OpenAI-compatible?");
  EventReader reader(kMostEventBytes);
  std::optional<Stopwatch> since_first;
  bool is_done = false, has_finished = false;
  const auto take = [&](std::string_view data) {
    is_done = data == "[DONE]";
    if (is_done) return false;
    ServerEvent event = parse_server_event(data);
    SPW_CHECK(event.error.empty(), kIo, "the server gave up its answer: {}", event.error);
    if (event.is_piece) {
      if (!since_first) answer.wait_s = since_asked_.seconds();
      if (!since_first) since_first.emplace();
      if (!answer.tokens_are_counted) ++answer.tokens;
      answer.decode_s = since_first->seconds();
    }
    if (event.completion_tokens) {
      answer.tokens = *event.completion_tokens;
      answer.tokens_are_counted = true;
    }
    if (event.prompt_tokens) answer.prompt_tokens = event.prompt_tokens;
    if (event.cached_tokens) answer.reused_tokens = static_cast<int64_t>(*event.cached_tokens);
    if (event.finish) answer.finish = *event.finish;
    has_finished = has_finished || event.finish;
    answer.text += event.text;
    SPW_CHECK(answer.text.size() <= kMostAnswerBytes, kIo, "the answer has more than {} bytes",
              kMostAnswerBytes);
    listener.show(event.text);
    return true;
  };
  std::string bytes;
  while (!is_done && response.read_some(bytes)) {
    reader.feed(bytes, take);
    bytes.clear();
  }
  SPW_CHECK(is_done || has_finished, kIo,
            "the server closed the connection in the middle of its answer");
}

void ServerSource::refuse(const ServerRefusal& refusal) const {
  std::string text =
      fmt::format("the server refuses: {} (HTTP {})", refusal.message, refusal.status);
  if (refusal.status == 401 || refusal.status == 403)
    text += options_.key.empty() ? "; --api-key-file FILE gives a key"
                                 : "; --api-key-file has another key first";
  if (refusal.status == 404 && !models_.empty()) {
    text += "; its models:";
    for (size_t i = 0; i < std::min(models_.size(), kShownModels); ++i)
      text += fmt::format(" {}", printable(models_[i].id));
  }
  const std::string flags = unusual_flags(options_.sampling);
  if ((refusal.status == 400 || refusal.status == 422) && !refusal.context_is_full &&
      !flags.empty())
    text += fmt::format("; not every server takes {}", flags);
  throw Error(is_busy(refusal.status) ? ErrorCode::kIo : ErrorCode::kInvalidArgument, text);
}

}  // namespace spillway
