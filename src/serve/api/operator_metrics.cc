// SPDX-License-Identifier: Apache-2.0
#include "serve/api/operator_metrics.h"

#include <map>
#include <mutex>

#include "base/process_figures.h"
#include "serve/api/metric_registry.h"

namespace spillway {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Labels;

constexpr size_t kMostKeys = 256;

}  // namespace

struct OperatorMetrics::Impl : MetricRegistry {
  prometheus::Family<Counter>& answers =
      counters("spillway_http_requests_total",
               "Answers by route and status; 499: the client left before there was one.");
  prometheus::Family<Gauge>& limits = gauges("spillway_limit", "What this server takes at most.");
  Gauge& open_connections = gauge("spillway_http_connections_open", "Connections now.");
  Counter& connections =
      counter("spillway_http_connections_total", "Connections that were accepted.");
  Counter& refused_connections = counter("spillway_http_connections_refused_total",
                                         "Connections beyond a limit: of all, or of one address.");
  Counter& cut_streams = counter("spillway_http_streams_cut_total",
                                 "Answers whose client read too slowly, and was cut off.");
  Gauge& open_requests =
      gauge("spillway_http_requests_open", "Requests whose answer is not complete.");
  Gauge& body_bytes =
      gauge("spillway_http_body_bytes", "Bytes of bodies that arrive or wait to be read.");
  Gauge& unread = gauge("spillway_readers_backlog",
                        "Requests whose bodies wait for a thread that parses and tokenizes them.");
  Gauge& resident = gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
  Gauge& virtual_size = gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.");
  Counter& cpu_s = counter("process_cpu_seconds_total", "User and system CPU time in seconds.");
  Gauge& open_files = gauge("process_open_fds", "Open file descriptors.");
  Gauge& most_files = gauge("process_max_fds", "File descriptors that may be open.");
  Gauge& start_s =
      gauge("process_start_time_seconds", "Start of the process in seconds since 1970.");

  struct KeyLoad {
    Gauge* open = nullptr;
    Counter *requests = nullptr, *prompt_tokens = nullptr, *generated_tokens = nullptr;
  };
  KeyLoad& load_of(const std::string& key) {
    const std::lock_guard lock(mutex);
    const auto known = keys.find(key);
    if (known != keys.end()) return known->second;
    const std::string name = keys.size() < kMostKeys ? key : "other";
    KeyLoad& load = keys[name];
    if (load.open != nullptr) return load;
    const Labels labels = {{"key", name}};
    load.open = &gauge("spillway_key_requests_open",
                       "Requests that run or wait, by the hash of their key.", labels);
    load.requests =
        &counter("spillway_key_requests_total", "Requests by the hash of their key.", labels);
    load.prompt_tokens = &counter("spillway_key_prompt_tokens_total",
                                  "Tokens of prompts by the hash of their key.", labels);
    load.generated_tokens = &counter("spillway_key_generated_tokens_total",
                                     "Tokens of answers by the hash of their key.", labels);
    return load;
  }
  std::mutex mutex;
  std::map<std::string, KeyLoad> keys;  // keys seen so far; entries are never removed
};

OperatorMetrics::OperatorMetrics() : impl_(std::make_shared<Impl>()) {}
OperatorMetrics::~OperatorMetrics() = default;

void OperatorMetrics::answered(std::string_view route, int status) {
  impl_->answers
      .Add({{"route", route.empty() ? "other" : std::string(route)},
            {"status", std::to_string(status)}})
      .Increment();
}

void OperatorMetrics::limit(const char* what, double most) {
  impl_->limits.Add({{"of", what}}).Set(most);
}

std::shared_ptr<const void> OperatorMetrics::begin(const std::string& key) {
  Impl::KeyLoad& load = impl_->load_of(key);
  load.requests->Increment();
  load.open->Increment();
  return {&load, [of = impl_](const void* held) {
            static_cast<const Impl::KeyLoad*>(held)->open->Decrement();
          }};
}

void OperatorMetrics::ended(const std::string& key, size_t prompt_tokens, size_t generated_tokens) {
  Impl::KeyLoad& load = impl_->load_of(key);
  load.prompt_tokens->Increment(static_cast<double>(prompt_tokens));
  load.generated_tokens->Increment(static_cast<double>(generated_tokens));
}

std::string OperatorMetrics::text(const Now& now) {
  Impl& of = *impl_;
  const ProcessFigures process = process_figures();
  {
    // The lock keeps two concurrent callers from counting the same increase twice.
    const std::lock_guard lock(of.mutex);
    follow(of.connections, static_cast<double>(now.http.connections));
    follow(of.refused_connections, static_cast<double>(now.http.refused_connections));
    follow(of.cut_streams, static_cast<double>(now.http.cut_streams));
    follow(of.cpu_s, process.cpu_s);
  }
  of.open_connections.Set(static_cast<double>(now.http.open_connections));
  of.open_requests.Set(static_cast<double>(now.http.open_replies));
  of.body_bytes.Set(static_cast<double>(now.http.bodies_bytes));
  of.unread.Set(static_cast<double>(now.unread_requests));
  of.resident.Set(static_cast<double>(process.resident_bytes));
  of.virtual_size.Set(static_cast<double>(process.virtual_bytes));
  of.open_files.Set(static_cast<double>(process.open_files));
  of.most_files.Set(static_cast<double>(process.most_files));
  of.start_s.Set(process.start_time_s);
  return of.text();
}

}  // namespace spillway
