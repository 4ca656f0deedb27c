// SPDX-License-Identifier: Apache-2.0
// Connects HTTP clients and the engine: parses requests, submits them, and writes the answers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine_loop.h"
#include "serve/api/operator_metrics.h"
#include "serve/api/reader_queue.h"
#include "serve/api/server_metrics.h"
#include "serve/http/http_reply.h"
#include "serve/http/http_request.h"
#include "serve/http/key_ring.h"
#include "serve/model_names.h"
#include "serve/openai_request.h"
#include "serve/request_memory.h"
#include "serve/served_model.h"

namespace spillway {

// Has threads besides the server's and the engine's. Bodies can be megabytes of text, so several
// reader threads parse them, and a long one does not hold up the others (ReaderQueue). A writer
// thread formats answers, so that steps do not wait for that.
class CompletionService {
 public:
  struct Options {
    std::string fingerprint;    // system_fingerprint of answers
    bool logs_prompts = false;  // logs the text of prompts and answers
    // A priority below 0 overtakes other clients' requests and needs this; one above 0 is always
    // allowed.
    bool trusts_priorities = false;
    UnknownFields unknown_fields = UnknownFields::kIgnore;
    const ModelNames* names = nullptr;  // names that clients may call the model; null: any
    const KeyRing* keys = nullptr;      // keys that clients show; null: there are none
    size_t most_unread = 1024;          // most requests whose bodies wait to be parsed
    // Host memory for requests: half of it for bodies that wait to be parsed, a quarter for their
    // JSON trees, and a quarter for prompts that are not answered yet.
    uint64_t request_bytes = 512 << 20;
    // If set, KV of common prefixes is shared among all keys, and cached_tokens tells each key what
    // others have sent; otherwise it is shared among the requests of one key.
    bool shares_among_keys = false;
  };

  // All of these must outlive it.
  CompletionService(const ServedModel& model, ServerMetrics& metrics, OperatorMetrics& operators,
                    const Options& options);
  ~CompletionService();
  CompletionService(const CompletionService&) = delete;
  CompletionService& operator=(const CompletionService&) = delete;

  // Call this before the first request; the loop's listener must call on_step(). Call
  // stop_reading() before the loop ends.
  void start(EngineLoop& loop);
  // Drops bodies that are not parsed yet; nothing is submitted to the loop any more.
  void stop_reading();
  // Also stops writing. Call this after the loop has ended.
  void stop();

  // These may be called on any thread.
  void complete(OpenAiRoute route, std::shared_ptr<const HttpRequest> request,
                std::shared_ptr<HttpReply> reply);
  void tokenize(std::shared_ptr<const HttpRequest> request, std::shared_ptr<HttpReply> reply);
  void detokenize(std::shared_ptr<const HttpRequest> request, std::shared_ptr<HttpReply> reply);
  // Sends what clients that make their own prompts need to know of the tokenizer. Throws
  // ApiError(400) if there is none.
  void send_tokenizer(HttpReply& reply) const;

  // Returns the number of requests whose bodies wait to be parsed.
  size_t unread() const;

  // Takes the events of a step; called on the engine's thread.
  void on_step(const StepReport& report);

 private:
  using Clock = std::chrono::steady_clock;
  struct Exchange;
  struct Place {
    std::shared_ptr<Exchange> exchange;
    size_t choice = 0;
  };
  struct ReportedStep {
    Clock::time_point at;
    std::vector<GenerationEvent> events;
  };

  // A `Work` gets the parsed body.
  using Work = std::function<void(const nlohmann::ordered_json& body)>;
  void read_later(std::shared_ptr<const HttpRequest> request, std::shared_ptr<HttpReply> reply,
                  Work work);
  void read(const HttpRequest& request, HttpReply& reply, const Work& work);
  void run_reader();
  void run_writer();
  void submit(OpenAiRoute route, const HttpRequest& request, const nlohmann::ordered_json& body,
              const std::shared_ptr<HttpReply>& reply, Clock::time_point came);
  void begin_stream(Exchange& exchange, StreamBatch& batch);
  void send_whole(const std::shared_ptr<Exchange>& exchange);
  void write(const ReportedStep& reports, StreamBatch& batch);
  void write(Exchange& exchange, size_t choice, const GenerationEvent& event, Clock::time_point at,
             StreamBatch& batch);
  void end(Exchange& exchange, Clock::time_point at, StreamBatch& batch);
  void forget(const Exchange& exchange);
  void refuse(HttpReply& reply, const ApiError& error);
  void count_tokens(const Exchange& exchange);
  void log(const Exchange& exchange, Clock::time_point at) const;
  std::optional<size_t> key_of(const HttpRequest& request) const;
  uint64_t client_of(const HttpRequest& request) const;
  // Logs each name when it first occurs, and adds a header that lists all of them.
  void report_ignored(const std::vector<std::string>& names, std::vector<HttpHeader>& headers);
  std::string salt_of(std::optional<size_t> key, const std::string& asked) const;

  const ServedModel& model_;
  ServerMetrics& metrics_;
  OperatorMetrics& operators_;
  Options options_;
  EngineLoop* loop_ = nullptr;
  RequestMemory trees_, prompts_;

  std::mutex exchanges_mutex_;
  std::unordered_map<RequestId, Place> exchanges_;

  std::mutex ignored_mutex_;
  std::set<std::string> logged_ignored_;  // logged field names; at most kMostLoggedIgnored

  ReaderQueue unread_;

  std::mutex reports_mutex_;
  std::condition_variable has_reports_;
  std::vector<ReportedStep> reports_;
  bool reports_end_ = false;

  std::vector<std::thread> readers_;
  std::thread writer_;
};

}  // namespace spillway
