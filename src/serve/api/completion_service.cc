// SPDX-License-Identifier: Apache-2.0
#include "serve/api/completion_service.h"

#include <arpa/inet.h>

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/log_event.h"
#include "base/thread_name.h"
#include "base/unix_seconds.h"
#include "serve/api_error.h"
#include "serve/bounded_json.h"
#include "serve/checksum.h"
#include "serve/completion.h"
#include "serve/completion_logprobs.h"

namespace spillway {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kIgnoredHeader = "X-Spillway-Ignored";
constexpr size_t kMostLoggedIgnored = 256;
constexpr int kReaders = 3;  // a connection has one request at a time, so order within it is kept

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

uint64_t random_bits() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Hides details of an internal error from the client; they go to the log.
ApiError internal_error() {
  return ApiError(500, "server_error", "", "the server had an error; its log says which");
}

ApiError as_api_error(const Error& error) {
  if (error.code() == ErrorCode::kInvalidArgument)
    return ApiError(400, "invalid_value", "", error.what());
  log_warning("a request failed: {}", error.what());
  return internal_error();
}

// Joins names for a header with commas; all but visible ASCII is percent-encoded.
std::string header_list(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    if (!list.empty()) list += ", ";
    for (const char c : name) {
      if (c > 0x20 && c < 0x7F && c != ',' && c != '%') {
        list += c;
      } else {
        list += fmt::format("%{:02X}", static_cast<unsigned char>(c));
      }
    }
  }
  return list;
}

std::string_view name_of(OpenAiRoute route) {
  return route == OpenAiRoute::kChatCompletions ? "chat" : "completion";
}

}  // namespace

// A request in the engine with its reply. A reader thread makes it, then the writer thread owns it.
struct CompletionService::Exchange {
  Exchange(Completion of, std::shared_ptr<HttpReply> to)
      : completion(std::move(of)), reply(std::move(to)) {}

  RequestMemory::Reservation memory;  // for the prompts
  Completion completion;
  std::shared_ptr<HttpReply> reply;
  AnswerHead head;
  std::vector<HttpHeader> headers;  // headers of the answer
  std::optional<AnswerStream> stream;
  // The head is sent with the first event, so that a request that is displaced before gets a
  // status.
  bool stream_begun = false;
  Clock::time_point began = {};
  std::optional<Clock::time_point> first_token;
  std::vector<Clock::time_point> last_token;  // time of each choice's last token
  bool step_failed = false;
  bool displaced = false;            // it lost its place in the queue before anything was computed
  std::string key;                   // KeyRing::label(); "" if there are no keys
  std::shared_ptr<const void> load;  // counts as an open request of that key while held
};

CompletionService::CompletionService(const ServedModel& model, ServerMetrics& metrics,
                                     OperatorMetrics& operators, const Options& options)
    : model_(model),
      metrics_(metrics),
      operators_(operators),
      options_(options),
      trees_(options.request_bytes / 4),
      prompts_(options.request_bytes / 4),
      unread_(options.most_unread) {}

CompletionService::~CompletionService() { stop(); }

void CompletionService::start(EngineLoop& loop) {
  loop_ = &loop;
  for (int i = 0; i < kReaders; ++i) readers_.emplace_back([this] { run_reader(); });
  writer_ = std::thread([this] { run_writer(); });
}

void CompletionService::stop_reading() {
  unread_.close();
  for (std::thread& reader : readers_) reader.join();
  readers_.clear();
}

void CompletionService::stop() {
  stop_reading();
  {
    const std::lock_guard lock(reports_mutex_);
    reports_end_ = true;
  }
  has_reports_.notify_all();
  if (writer_.joinable()) writer_.join();
}

namespace {

// Returns the /64 prefix of an IPv6 address, since a site may use all addresses below it; of an
// IPv4 address, all of it.
std::string site_of(std::string_view address) {
  in6_addr parsed = {};
  if (inet_pton(AF_INET6, std::string(address).c_str(), &parsed) != 1) return std::string(address);
  const std::string_view bytes(reinterpret_cast<const char*>(parsed.s6_addr), sizeof(parsed));
  constexpr size_t kSiteBytes = 8, kV4Bytes = 4;
  return std::string(IN6_IS_ADDR_V4MAPPED(&parsed) ? bytes.substr(bytes.size() - kV4Bytes)
                                                   : bytes.substr(0, kSiteBytes));
}

}  // namespace

std::optional<size_t> CompletionService::key_of(const HttpRequest& request) const {
  return options_.keys != nullptr ? options_.keys->try_find(request) : std::nullopt;
}

// Returns the salt of the prefix cache: requests share KV if their salts are equal, that is, if
// they have the same key and ask for the same salt.
std::string CompletionService::salt_of(std::optional<size_t> key, const std::string& asked) const {
  if (key && !options_.shares_among_keys)
    return fmt::format("key {} {}", options_.keys->digest(*key), asked);
  return asked.empty() ? std::string() : "salt " + asked;
}

size_t CompletionService::unread() const { return unread_.size(); }

// Identifies the client for fair scheduling: by its key, else by its address. It contains nothing
// that a client could make up.
uint64_t CompletionService::client_of(const HttpRequest& request) const {
  const auto key = key_of(request);
  return checksum64(key ? fmt::format("key {}", *key) : "at " + site_of(request.address()));
}

void CompletionService::report_ignored(const std::vector<std::string>& names,
                                       std::vector<HttpHeader>& headers) {
  if (names.empty()) return;
  headers.push_back({std::string(kIgnoredHeader), header_list(names)});
  for (const std::string& name : names) {
    {
      const std::lock_guard lock(ignored_mutex_);
      // A client that makes up names must fill neither the memory nor the log.
      if (logged_ignored_.size() >= kMostLoggedIgnored) return;
      if (!logged_ignored_.insert(name).second) continue;
    }
    log_warning(
        "requests have the field '{}', which is not known here and has no effect; "
        "--strict-fields refuses such requests",
        name);
  }
}

void CompletionService::refuse(HttpReply& reply, const ApiError& error) {
  metrics_.refused(error.status());
  reply.send_error(error);
}

void CompletionService::read_later(std::shared_ptr<const HttpRequest> request,
                                   std::shared_ptr<HttpReply> reply, Work work) {
  ReaderQueue::Job job{.client = client_of(*request), .bytes = request->body.size()};
  job.work = [this, request = std::move(request), reply, work = std::move(work)] {
    read(*request, *reply, work);
  };
  if (unread_.try_push(job)) return;
  refuse(*reply, ApiError(429, "rate_limit_exceeded", "",
                          "too many requests wait to be read; try again later"));
}

void CompletionService::read(const HttpRequest& request, HttpReply& reply, const Work& work) {
  if (reply.is_gone()) return;
  try {
    try {
      const JsonSize size = check_json_bounds(request.body, model_.json_limits());
      const RequestMemory::Reservation memory = trees_.wait(size.tree_bytes());
      work(parse_bounded_json(request.body));
    } catch (const ApiError& error) {
      refuse(reply, error);
    } catch (const Error& error) {
      refuse(reply, as_api_error(error));
    }
  } catch (const std::exception& error) {
    // If the answer has begun already, dropping the reply cuts it off.
    log_warning("a request failed: {}", error.what());
  }
}

void CompletionService::run_reader() {
  name_this_thread("http-reader");
  while (std::optional<ReaderQueue::Job> job = unread_.take()) {
    const size_t bytes = job->bytes;
    job->work();
    job.reset();  // this frees the body, too
    if (unread_.done(bytes)) give_free_memory_back();
  }
}

void CompletionService::complete(OpenAiRoute route, std::shared_ptr<const HttpRequest> request,
                                 std::shared_ptr<HttpReply> reply) {
  const HttpRequest& asked = *request;  // the job keeps the request alive
  read_later(std::move(request), reply,
             [this, route, &asked, reply, came = Clock::now()](const ordered_json& body) {
               submit(route, asked, body, reply, came);
             });
}

void CompletionService::submit(OpenAiRoute route, const HttpRequest& request,
                               const ordered_json& body, const std::shared_ptr<HttpReply>& reply,
                               Clock::time_point came) {
  OpenAiRequest asked = parse_openai_request(route, body, options_.unknown_fields);
  if (options_.names != nullptr && !options_.names->accepts(asked.model))
    throw ApiError(404, "model_not_found", "model",
                   fmt::format("there is no model '{}' here; /v1/models lists what there is, and "
                               "--alias gives it other names",
                               asked.model.substr(0, 200)));
  if (asked.priority < 0 && !options_.trusts_priorities)
    throw ApiError(400, "invalid_value", "priority",
                   "a 'priority' below 0 goes before others', which clients of this server may "
                   "not; it starts with --trust-priorities where they may");
  const uint64_t client = client_of(request);
  const std::optional<size_t> key = key_of(request);
  const uint64_t user = asked.user.empty() ? 0 : checksum64(asked.user);
  auto exchange = std::make_shared<Exchange>(
      Completion(std::move(asked), model_, /*default_seed=*/random_bits()), reply);
  exchange->head = {.id = answer_id(route, request.id),
                    .created = unix_seconds(),
                    .model = model_.name(),
                    .fingerprint = options_.fingerprint};
  exchange->headers = {{std::string(kRequestIdHeader), exchange->head.id}};
  report_ignored(exchange->completion.request().ignored, exchange->headers);
  exchange->began = came;
  if (key) {
    exchange->key = options_.keys->label(*key);
    exchange->load = operators_.begin(exchange->key);
  }
  exchange->last_token.resize(exchange->completion.choices());
  std::vector<GenerationRequest> generations = exchange->completion.take_generations();
  uint64_t prompt_tokens = 0;
  for (GenerationRequest& generation : generations) {
    generation.client = client;
    generation.user = user;
    prompt_tokens += generation.prompt.size();
    generation.cache_salt = salt_of(key, generation.cache_salt);
    generation.came = came;
  }
  // The engine keeps a copy of the prompt.
  exchange->memory = prompts_.reserve(2 * sizeof(TokenId) * prompt_tokens);
  const bool streams = exchange->completion.request().stream;
  if (streams)
    exchange->stream.emplace(exchange->head, exchange->completion.request(), model_.tokenizer(),
                             exchange->completion.usage().prompt_tokens);
  loop_->predict(generations);
  std::vector<RequestId> ids;
  {
    // The lock is held so that the requests' first events already find this exchange.
    const std::lock_guard lock(exchanges_mutex_);
    if (!generations.empty()) {
      auto taken = loop_->try_submit(std::move(generations));
      if (!taken) {
        if (loop_->is_draining())
          throw ApiError(503, "server_draining", "", "the server is about to end");
        throw ApiError(429, "rate_limit_exceeded", "", "too many requests wait; try again later");
      }
      ids = std::move(*taken);
    }
    for (size_t i = 0; i < ids.size(); ++i) exchanges_.emplace(ids[i], Place{exchange, i});
  }
  if (options_.logs_prompts)
    log_event(LogLevel::kInfo, fmt::format("{}: {}", exchange->head.id, request.body),
              {{"event", "asked"}, {"id", exchange->head.id}, {"body", request.body}});
  if (ids.empty()) return send_whole(exchange);
  reply->on_gone([this, ids] { loop_->cancel(ids); });
}

void CompletionService::begin_stream(Exchange& exchange, StreamBatch& batch) {
  if (std::exchange(exchange.stream_begun, true)) return;
  std::vector<HttpHeader> headers = exchange.headers;
  headers.push_back({"Cache-Control", "no-cache"});
  headers.push_back({"X-Accel-Buffering", "no"});
  exchange.reply->begin_stream(200, "text/event-stream; charset=utf-8", std::move(headers));
  for (size_t i = 0; i < exchange.completion.choices(); ++i)
    batch.write(*exchange.reply, exchange.stream->begin(exchange.completion.choice(i)));
}

// Sends an answer for which nothing had to be computed.
void CompletionService::send_whole(const std::shared_ptr<Exchange>& exchange) {
  StreamBatch batch;
  GenerationEvent event;
  event.finish = FinishReason::kLength;
  if (exchange->stream) begin_stream(*exchange, batch);
  for (size_t i = 0; i < exchange->completion.choices() && exchange->stream; ++i)
    batch.write(*exchange->reply, exchange->stream->piece(exchange->completion.choice(i), event));
  end(*exchange, Clock::now(), batch);
  batch.hand_over();
}

void CompletionService::on_step(const StepReport& report) {
  metrics_.step(report);
  if (report.events.empty()) return;
  {
    const std::lock_guard lock(reports_mutex_);
    reports_.push_back({Clock::now(), {report.events.begin(), report.events.end()}});
  }
  has_reports_.notify_one();
}

void CompletionService::run_writer() {
  name_this_thread("http-writer");
  StreamBatch batch;
  std::vector<ReportedStep> reports;
  while (true) {
    reports.clear();
    {
      std::unique_lock lock(reports_mutex_);
      has_reports_.wait(lock, [&] { return reports_end_ || !reports_.empty(); });
      if (reports_.empty()) return;
      std::swap(reports, reports_);
    }
    for (const ReportedStep& step : reports) write(step, batch);
    batch.hand_over();
  }
}

void CompletionService::write(const ReportedStep& reports, StreamBatch& batch) {
  std::vector<Place> places;
  {
    const std::lock_guard lock(exchanges_mutex_);
    for (const GenerationEvent& event : reports.events) {
      const auto found = exchanges_.find(event.id);
      places.push_back(found == exchanges_.end() ? Place{} : found->second);
      if (found != exchanges_.end() && event.finish) exchanges_.erase(found);
    }
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (!places[i].exchange) continue;
    try {
      write(*places[i].exchange, places[i].choice, reports.events[i], reports.at, batch);
    } catch (const std::exception& error) {
      // Only this answer is cut off; the others go on.
      log_warning("{} could not be answered: {}", places[i].exchange->head.id, error.what());
      forget(*places[i].exchange);
    }
  }
}

void CompletionService::forget(const Exchange& exchange) {
  const std::lock_guard lock(exchanges_mutex_);
  std::erase_if(exchanges_, [&](const auto& entry) {
    if (entry.second.exchange.get() != &exchange) return false;
    loop_->cancel(entry.first);
    return true;
  });
}

void CompletionService::write(Exchange& exchange, size_t choice, const GenerationEvent& event,
                              Clock::time_point at, StreamBatch& batch) {
  if (event.token) {
    Clock::time_point& last = exchange.last_token[choice];
    if (!exchange.first_token) {
      exchange.first_token = at;
      metrics_.first_token(seconds_between(exchange.began, at));
    }
    if (last != Clock::time_point()) metrics_.next_token(seconds_between(last, at));
    last = at;
  }
  exchange.step_failed |= event.step_failed;
  exchange.displaced |= event.displaced;
  const bool ended = exchange.completion.add(choice, event);
  const bool failed = event.finish == FinishReason::kError;
  if (exchange.stream && !failed && !event.displaced) {
    begin_stream(exchange, batch);
    std::string piece = exchange.stream->piece(exchange.completion.choice(choice), event);
    if (!piece.empty()) batch.write(*exchange.reply, std::move(piece));
  }
  if (ended) end(exchange, at, batch);
}

void CompletionService::end(Exchange& exchange, Clock::time_point at, StreamBatch& batch) {
  const Choice* const failed = exchange.completion.failed();
  const char* const finish =
      finish_reason_name(failed != nullptr ? failed->finish : exchange.completion.choice(0).finish);
  if (exchange.displaced)
    return refuse(*exchange.reply,
                  ApiError(429, "rate_limit_exceeded", "",
                           "other clients' requests have taken the places that this client held "
                           "beyond its share of the queue; try again later"));
  metrics_.ended(finish, seconds_between(exchange.began, at));
  count_tokens(exchange);
  log(exchange, at);
  if (failed != nullptr) {
    if (exchange.step_failed) log_warning("{} failed: {}", exchange.head.id, failed->error);
    const ApiError error = exchange.step_failed ? ApiError(503, "server_error", "",
                                                           "this could not be computed; try again")
                                                : ApiError(500, "server_error", "", failed->error);
    if (exchange.stream_begun) {
      batch.write(*exchange.reply, AnswerStream::error(error));
      batch.finish(*exchange.reply);
    } else {
      exchange.reply->send_error(error, exchange.headers);
    }
    return;
  }
  const Usage usage = exchange.completion.usage();
  if (exchange.stream) {
    batch.write(*exchange.reply, exchange.stream->end(usage));
    batch.finish(*exchange.reply);
    return;
  }
  HttpAnswer answer = json_answer(200, json_line(exchange.completion.body(exchange.head, usage)));
  answer.headers = exchange.headers;
  exchange.reply->send(std::move(answer));
}

void CompletionService::count_tokens(const Exchange& exchange) {
  const Usage usage = exchange.completion.usage();
  metrics_.prompt_length(usage.prompt_tokens);
  for (size_t i = 0; i < exchange.completion.choices(); ++i)
    metrics_.answer_length(exchange.completion.choice(i).ids.size());
  if (!exchange.key.empty())
    operators_.ended(exchange.key, usage.prompt_tokens, usage.completion_tokens);
}

void CompletionService::log(const Exchange& exchange, Clock::time_point at) const {
  if (log_level() > LogLevel::kInfo) return;
  const Usage usage = exchange.completion.usage();
  const Choice* const failed = exchange.completion.failed();
  const std::string finish =
      finish_reason_name(failed != nullptr ? failed->finish : exchange.completion.choice(0).finish);
  const double first_s = seconds_between(exchange.began, exchange.first_token.value_or(at));
  const double all_s = seconds_between(exchange.began, at);
  std::string message = fmt::format(
      "{} {}: {} prompt tokens, {} generated, first after {:.3f} s, all after {:.3f} s",
      exchange.head.id, finish, usage.prompt_tokens, usage.completion_tokens, first_s, all_s);
  std::vector<LogField> fields = {
      {"event", std::string(name_of(exchange.completion.request().route))},
      {"id", exchange.head.id},
      {"finish", finish},
      {"choices", static_cast<int64_t>(exchange.completion.choices())},
      {"prompt_tokens", static_cast<int64_t>(usage.prompt_tokens)},
      {"cached_tokens", static_cast<int64_t>(usage.cached_tokens.value_or(0))},
      {"completion_tokens", static_cast<int64_t>(usage.completion_tokens)},
      {"first_token_seconds", first_s},
      {"seconds", all_s}};
  if (options_.logs_prompts) {
    std::vector<std::string> answers;
    for (size_t i = 0; i < exchange.completion.choices(); ++i) {
      answers.push_back(exchange.completion.choice(i).text);
      message += exchange.completion.choices() == 1 ? ": " : fmt::format("; choice {}: ", i);
      message += answers.back();
    }
    fields.push_back({"answers", std::move(answers)});
  }
  log_event(LogLevel::kInfo, message, fields);
}

void CompletionService::tokenize(std::shared_ptr<const HttpRequest> request,
                                 std::shared_ptr<HttpReply> reply) {
  const size_t body_bytes = request->body.size();
  read_later(std::move(request), reply, [this, body_bytes, reply](const ordered_json& body) {
    const TokenizeRequest asked = parse_tokenize_request(body, options_.unknown_fields);
    const Tokenizer& tokenizer = model_.require_tokenizer();
    constexpr size_t kMostShown = 1 << 20;
    if (asked.with_pieces && body_bytes > kMostShown)
      throw ApiError(400, "invalid_value", "with_pieces",
                     fmt::format("'with_pieces' takes {} bytes at most", kMostShown));
    const std::vector<TokenId> ids =
        asked.chat ? model_.encode_chat(*asked.chat)
                   : tokenizer.encode(asked.content, {.add_special = asked.add_special,
                                                      .parse_special = asked.parse_special});
    ordered_json tokens = ordered_json::array();
    for (const TokenId id : ids) {
      if (asked.with_pieces) {
        tokens.push_back({{"id", id}, {"piece", token_text(id, &tokenizer)}});
      } else {
        tokens.push_back(id);
      }
    }
    HttpAnswer answer =
        json_answer(200, json_line({{"tokens", std::move(tokens)},
                                    {"count", ids.size()},
                                    {"max_model_len", model_.max_sequence_tokens()}}));
    report_ignored(asked.ignored, answer.headers);
    reply->send(std::move(answer));
  });
}

void CompletionService::detokenize(std::shared_ptr<const HttpRequest> request,
                                   std::shared_ptr<HttpReply> reply) {
  read_later(std::move(request), reply, [this, reply](const ordered_json& body) {
    const DetokenizeRequest asked = parse_detokenize_request(body, options_.unknown_fields);
    const Tokenizer& tokenizer = model_.require_tokenizer();
    for (const TokenId id : asked.tokens)
      if (static_cast<size_t>(id) >= tokenizer.vocab_size())
        throw ApiError(
            400, "invalid_value", "tokens",
            fmt::format("there is no token {} in a vocabulary of {}", id, tokenizer.vocab_size()));
    const std::string text = tokenizer.decode(asked.tokens, {.keep_special = true});
    HttpAnswer answer = json_answer(200, json_line({{"content", text}, {"prompt", text}}));
    report_ignored(asked.ignored, answer.headers);
    reply->send(std::move(answer));
  });
}

// The field names are those of Hugging Face's tokenizer_config.json, which vLLM uses, too.
void CompletionService::send_tokenizer(HttpReply& reply) const {
  const Tokenizer& tokenizer = model_.require_tokenizer();
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  const auto spelled = [&](const std::optional<TokenId>& id) -> ordered_json {
    if (!id) return nullptr;
    return std::string(tokenizer.spelling(*id));
  };
  ordered_json chat = nullptr;
  if (const std::string* const text = model_.chat_template()) chat = *text;
  reply.send(json_answer(200, json_line({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                         {"bos_token", spelled(vocabulary.bos)},
                                         {"eos_token", spelled(vocabulary.eos)},
                                         {"unk_token", spelled(vocabulary.unk)},
                                         {"pad_token", spelled(vocabulary.pad)},
                                         {"add_bos_token", vocabulary.add_bos},
                                         {"add_eos_token", vocabulary.add_eos},
                                         {"vocab_size", tokenizer.vocab_size()},
                                         {"model_max_length", model_.max_sequence_tokens()},
                                         {"chat_template", std::move(chat)}})));
}

}  // namespace spillway
