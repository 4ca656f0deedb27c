// SPDX-License-Identifier: Apache-2.0
// The API server: OpenAI's routes, and those for operators. It listens before the model is loaded.
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
  std::optional<KeyRing> keys;  // nullopt: no key is needed
  ModelNames model;             // names that clients call it by
  std::string version = {};     // version of the program, for /version
  // Names that the server answers to besides addresses and "localhost". The Host header is checked
  // if there are no keys and only this machine can connect, or if any names are given (HostCheck).
  std::vector<std::string> allowed_hosts = {};
};

// All methods except set_progress() must be called from one thread.
class ApiServer {
 public:
  // Listens from now on: until start(), /health reports loading and other routes answer 503. Throws
  // what HttpServer's constructor throws.
  explicit ApiServer(ApiServerOptions options);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  uint16_t port() const;
  // Sets the progress of loading, 0 to 1. Thread-safe.
  void set_progress(double share) { progress_.store(share, std::memory_order_relaxed); }

  // Answers requests from now on until stop(); `engine` and `model` must outlive that. At most
  // `max_outstanding` requests run or wait; more are refused with 429.
  void start(Engine& engine, const ServedModel& model, int max_outstanding,
             const CompletionService::Options& service, const ServingFacts& facts);

  // Accepts no more requests; those accepted before are completed.
  void drain();
  // Waits until all of these are completed and sent; returns false if that takes longer than about
  // `most`.
  [[nodiscard]] bool wait_until_drained(std::chrono::milliseconds most);
  // Cuts off what is left. Called once.
  void stop();
  int outstanding() const { return loop_ ? loop_->outstanding() : 0; }

 private:
  using Request = std::shared_ptr<const HttpRequest>;
  using Reply = std::shared_ptr<HttpReply>;
  void add_routes();
  void watch(const StepReport& report);
  std::string metrics_text();
  void send_health(const Reply& reply) const;
  void send_models(const Reply& reply) const;
  // `encoded_name` is the end of a path.
  void send_model(std::string_view encoded_name, const Reply& reply) const;
  nlohmann::ordered_json describe_model(const std::string& name) const;
  // Throws ApiError(503) until start().
  CompletionService& service() const;

  ApiServerOptions options_;
  int64_t created_;
  ServerMetrics metrics_;
  OperatorMetrics operators_;
  std::atomic<double> progress_ = 0;
  std::atomic<bool> is_ready_ = false;
  std::atomic<bool> is_draining_ = false;
  std::atomic<int> failed_steps_ = 0;  // failed steps in a row
  int64_t steps_ = 0;                  // steps of the engine; used on its thread alone
  int64_t max_sequence_tokens_ = 0;
  Router router_;
  std::unique_ptr<CompletionService> service_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<HttpServer> http_;
  // Equal to http_ once that is constructed; the first requests come before its constructor
  // returns.
  std::atomic<const HttpServer*> listening_ = nullptr;
};

}  // namespace spillway
