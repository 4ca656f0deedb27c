// SPDX-License-Identifier: Apache-2.0
#include "serve/api/api_server.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/unix_seconds.h"
#include "serve/api_error.h"
#include "serve/http/http_url.h"
#include "serve/openai_response.h"
#include "serve/page/page_files.h"

namespace spillway {
namespace {

using nlohmann::ordered_json;

// One failed step may be chance; after this many in a row /health reports that the machine fails.
constexpr int kFailing = 3;

Router router_for(const ApiServerOptions& options) {
  const bool is_private =
      !options.keys && HttpUrl{.host = options.http.host, .path = {}}.is_this_machine();
  if (!is_private && options.allowed_hosts.empty()) return Router(options.keys);
  return Router(options.keys, HostCheck(options.allowed_hosts, options.http.cors_origins));
}

// The headers let browsers run only the page's own scripts and talk only to this server.
HttpAnswer page_answer(const PageFile& file) {
  return {.status = 200,
          .content_type = std::string(file.content_type),
          .body = std::string(file.text),
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src "
                       "'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}}};
}

}  // namespace

ApiServer::ApiServer(ApiServerOptions options)
    : options_(std::move(options)), created_(unix_seconds()), router_(router_for(options_)) {
  options_.keys.reset();  // the router has them now
  add_routes();
  router_.observe(
      [this](std::string_view route, int status) { operators_.answered(route, status); });
  operators_.limit("connections", static_cast<double>(options_.http.most_connections));
  operators_.limit("connections_per_client",
                   static_cast<double>(options_.http.most_client_connections > 0
                                           ? options_.http.most_client_connections
                                           : options_.http.most_connections));
  operators_.limit("body_bytes", static_cast<double>(options_.http.most_body_bytes));
  http_ = std::make_unique<HttpServer>(options_.http, router_);
  listening_ = http_.get();
}

ApiServer::~ApiServer() { stop(); }

void ApiServer::stop() {
  http_->stop_now();  // no on_gone() callback is called after this
  if (service_) service_->stop_reading();
  loop_.reset();
  if (service_) service_->stop();
}

uint16_t ApiServer::port() const { return http_->port(); }

void ApiServer::add_routes() {
  using Access = Router::Access;
  const auto add = [&](HttpMethod method, std::string path, Access access, Router::Action action) {
    router_.add(method, std::move(path), access, std::move(action));
  };
  add(HttpMethod::kGet, "/health", Access::kProbe,
      [this](const Request&, const Reply& reply) { send_health(reply); });
  add(HttpMethod::kGet, "/metrics", Access::kWithKey, [this](const Request&, const Reply& reply) {
    reply->send({.status = 200,
                 .content_type = "text/plain; version=0.0.4; charset=utf-8",
                 .body = metrics_text()});
  });
  for (const PageFile& file : page_files()) {
    // The page itself asks the user for a key if its requests need one.
    add(HttpMethod::kGet, file.path.data(), Access::kOpen,
        [&file](const Request&, const Reply& reply) { reply->send(page_answer(file)); });
  }
  add(HttpMethod::kGet, "/version", Access::kWithKey, [this](const Request&, const Reply& reply) {
    reply->send(json_answer(200, json_line({{"version", options_.version}})));
  });
  // The same routes without /v1, for clients whose base URL lacks it.
  for (const std::string base : {"/v1", ""}) {
    const std::string models = base + "/models/";
    add(HttpMethod::kGet, base + "/models", Access::kWithKey,
        [this](const Request&, const Reply& reply) { send_models(reply); });
    add(HttpMethod::kGet, models, Access::kWithKey,
        [this, models](const Request& request, const Reply& reply) {
          send_model(without_trailing_slash(request->path).substr(models.size()), reply);
        });
    add(HttpMethod::kPost, base + "/completions", Access::kWithKey,
        [this](Request request, Reply reply) {
          service().complete(OpenAiRoute::kCompletions, std::move(request), std::move(reply));
        });
    add(HttpMethod::kPost, base + "/chat/completions", Access::kWithKey,
        [this](Request request, Reply reply) {
          service().complete(OpenAiRoute::kChatCompletions, std::move(request), std::move(reply));
        });
  }
  add(HttpMethod::kPost, "/tokenize", Access::kWithKey, [this](Request request, Reply reply) {
    service().tokenize(std::move(request), std::move(reply));
  });
  add(HttpMethod::kGet, "/tokenizer_info", Access::kWithKey,
      [this](const Request&, const Reply& reply) { service().send_tokenizer(*reply); });
  add(HttpMethod::kPost, "/detokenize", Access::kWithKey, [this](Request request, Reply reply) {
    service().detokenize(std::move(request), std::move(reply));
  });
}

CompletionService& ApiServer::service() const {
  if (is_ready_) return *service_;
  throw ApiError(503, "model_loading", "", "the model is being loaded; /health says how far it is");
}

void ApiServer::watch(const StepReport& report) {
  if (report.failed) {
    failed_steps_.fetch_add(1);
  } else if (report.stats.steps != steps_) {
    failed_steps_.store(0);
  }
  steps_ = report.stats.steps;
}

std::string ApiServer::metrics_text() {
  OperatorMetrics::Now now;
  if (const HttpServer* const http = listening_.load()) now.http = http->counters();
  if (is_ready_) {
    now.unread_requests = service_->unread();
    if (const auto store = loop_->store_stats()) metrics_.store(*store);
  }
  return metrics_.text() + operators_.text(now);
}

void ApiServer::send_health(const Reply& reply) const {
  const auto tell_later = [&](const ordered_json& what) {
    HttpAnswer answer = json_answer(503, json_line(what));
    answer.headers.push_back({"Retry-After", "1"});
    reply->send(std::move(answer));
  };
  if (is_draining_) {
    tell_later({{"status", "draining"}});
  } else if (failed_steps_ >= kFailing) {
    tell_later({{"status", "failing"}, {"failed_steps", failed_steps_.load()}});
  } else if (is_ready_) {
    reply->send(json_answer(200, json_line({{"status", "ok"}})));
  } else {
    tell_later({{"status", "loading"}, {"progress", progress_.load()}});
  }
}

void ApiServer::send_models(const Reply& reply) const {
  ordered_json models = ordered_json::array();
  for (const std::string& name : options_.model.listed()) models.push_back(describe_model(name));
  reply->send(json_answer(200, json_line({{"object", "list"}, {"data", std::move(models)}})));
}

void ApiServer::send_model(std::string_view encoded_name, const Reply& reply) const {
  std::string name(encoded_name);
  // A slash that a client encoded is still encoded in paths.
  for (const std::string_view slash : {"%2F", "%2f"})
    for (size_t at = name.find(slash); at != name.npos; at = name.find(slash, at))
      name.replace(at, slash.size(), 1, '/');
  if (name.empty() || !options_.model.accepts(name))
    throw ApiError(404, "model_not_found", "model",
                   "there is no such model here; /v1/models lists what there is");
  reply->send(json_answer(200, json_line(describe_model(name))));
}

ordered_json ApiServer::describe_model(const std::string& name) const {
  ordered_json model = {
      {"id", name}, {"object", "model"}, {"created", created_}, {"owned_by", "spillway"}};
  if (is_ready_) model["max_model_len"] = max_sequence_tokens_;
  return model;
}

void ApiServer::start(Engine& engine, const ServedModel& model, int max_outstanding,
                      const CompletionService::Options& service, const ServingFacts& facts) {
  metrics_.set_facts(facts);
  max_sequence_tokens_ = model.max_sequence_tokens();
  operators_.limit("requests", max_outstanding);
  operators_.limit("context_tokens", static_cast<double>(max_sequence_tokens_));
  CompletionService::Options with_keys = service;
  with_keys.keys = router_.keys();
  with_keys.names = &options_.model;
  with_keys.most_unread = options_.http.most_connections;
  service_ = std::make_unique<CompletionService>(model, metrics_, operators_, with_keys);
  http_->limit_bodies(service.request_bytes / 2);
  loop_ = std::make_unique<EngineLoop>(
      engine,
      [this](const StepReport& report) {
        watch(report);
        service_->on_step(report);
      },
      EngineLoop::Options{.max_outstanding = max_outstanding, .reports_traffic = true});
  service_->start(*loop_);
  is_ready_ = true;
}

void ApiServer::drain() {
  is_draining_ = true;
  // New clients are still accepted, so that they get an answer instead of a refused connection.
  http_->stop_accepting(HttpServer::NewConnections::kAccepted);
  if (loop_) loop_->drain();
}

bool ApiServer::wait_until_drained(std::chrono::milliseconds most) {
  if (loop_ && !loop_->wait_for(most)) return false;
  return http_->wait_until_answered(most);
}

}  // namespace spillway
