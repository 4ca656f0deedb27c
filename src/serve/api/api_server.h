// SPDX-License-Identifier: Apache-2.0
// The server: OpenAI's routes, and what operators ask. It listens before the model is loaded.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_loop.h"
#include "serve/api/completion_service.h"
#include "serve/api/operator_metrics.h"
#include "serve/api/server_metrics.h"
#include "serve/http/http_server.h"
#include "serve/http/key_ring.h"
#include "serve/http/router.h"
#include "serve/model_names.h"
#include "serve/served_model.h"

namespace spillway {

struct ApiServerOptions {
  HttpOptions http;
  std::optional<KeyRing> keys;  // none: everyone may call
  ModelNames model;             // what clients call it
  std::string version = {};     // of the program, as /version says it
  // Names that the server answers to beside addresses and "localhost". They are checked where there
  // are no keys and only this machine can call, or where any are given (HostCheck).
  std::vector<std::string> allowed_hosts = {};
};

// Methods are called from one thread, but for set_progress().
class ApiServer {
 public:
  // Listens at once: /health says that it is loading, the others 503. Throws as HttpServer.
  explicit ApiServer(ApiServerOptions options);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  uint16_t port() const;
  // Of loading, 0 to 1. Any thread.
  void set_progress(double share) { progress_.store(share, std::memory_order_relaxed); }

  // Answers requests from now on, until stop(), which both must outlive. `max_outstanding`:
  // requests at work or waiting; more are told to come again.
  void start(Engine& engine, const ServedModel& model, int max_outstanding,
             const CompletionService::Options& service, const ServingFacts& facts);

  // What was taken goes on to its end, and nothing new is taken.
  void drain();
  // Whether all of that has ended and been sent, `most` later at most.
  [[nodiscard]] bool wait_until_drained(std::chrono::milliseconds most);
  // Cuts off what is left. Once.
  void stop();
  int outstanding() const { return loop_ ? loop_->outstanding() : 0; }

 private:
  using Request = std::shared_ptr<const HttpRequest>;
  using Reply = std::shared_ptr<HttpReply>;
  void add_routes();
  void watch(const StepReport& report);
  std::string metrics_text();
  void tell_health(const Reply& reply) const;
  void tell_models(const Reply& reply) const;
  // `encoded_name`: the end of a path.
  void tell_model(std::string_view encoded_name, const Reply& reply) const;
  nlohmann::ordered_json describe_model(const std::string& name) const;
  // Throws ApiError(503) where the model is not there yet.
  CompletionService& service() const;

  ApiServerOptions options_;
  int64_t created_;
  ServerMetrics metrics_;
  OperatorMetrics operators_;
  std::atomic<double> progress_ = 0;
  std::atomic<bool> is_ready_ = false;
  std::atomic<bool> is_draining_ = false;
  std::atomic<int> failed_steps_ = 0;  // in a row
  int64_t steps_ = 0;                  // of the engine; its thread's
  int64_t max_sequence_tokens_ = 0;
  Router router_;
  std::unique_ptr<CompletionService> service_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<HttpServer> http_;
  // The same once it is there: its first requests come before its constructor has returned.
  std::atomic<const HttpServer*> listening_ = nullptr;
};

}  // namespace spillway
