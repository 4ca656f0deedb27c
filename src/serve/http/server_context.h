// SPDX-License-Identifier: Apache-2.0
// The state that all connections of a server share.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "serve/http/client_connections.h"
#include "serve/http/cors.h"
#include "serve/http/http_handler.h"
#include "serve/http/http_options.h"

namespace spillway {

// Counts open replies. Thread-safe.
class OpenReplies {
 public:
  void add() { count_.fetch_add(1); }
  void remove() {
    if (count_.fetch_sub(1) != 1) return;
    // The lock keeps a waiter from missing this call between its check and its wait.
    const std::lock_guard lock(mutex_);
    none_.notify_all();
  }
  size_t count() const { return count_.load(); }
  bool wait_for_none(std::chrono::milliseconds most) const {
    std::unique_lock lock(mutex_);
    return none_.wait_for(lock, most, [&] { return count_.load() == 0; });
  }

 private:
  std::atomic<size_t> count_{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable none_;
};

// All of it is thread-safe.
struct ServerContext {
  ServerContext(HttpOptions with, HttpHandler& answering)
      : options(std::move(with)),
        handler(answering),
        cors(options.cors_origins),
        clients(options.most_client_connections) {}

  const HttpOptions options;
  HttpHandler& handler;
  const Cors cors;
  ClientConnections clients;
  std::atomic<bool> draining{false};
  OpenReplies replies;
  // Returns a unique id for a request: an unpredictable part and a count.
  std::string next_request_id() {
    return fmt::format("{:016x}{:08x}", id_base, ids.fetch_add(1, std::memory_order_relaxed));
  }

  const uint64_t id_base = (uint64_t{std::random_device()()} << 32) | std::random_device()();
  std::atomic<uint32_t> ids{0};
  std::atomic<size_t> most_bodies_bytes{options.most_bodies_bytes};
  // Shared, since requests may outlive the server.
  const std::shared_ptr<std::atomic<size_t>> bodies_bytes =
      std::make_shared<std::atomic<size_t>>(0);
  std::atomic<uint64_t> open_connections{0};
  std::atomic<uint64_t> welcome_connections{0};  // of these, those within the limits
  std::atomic<uint64_t> connections{0};
  std::atomic<uint64_t> refused_connections{0};
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> cut_streams{0};
  std::atomic<uint64_t> socket_writes{0};
  std::atomic<uint64_t> wake_ups{0};
};

}  // namespace spillway
