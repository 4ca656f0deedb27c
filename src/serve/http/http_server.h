// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 server for a handler: connections, limits, timeouts, and an orderly end.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "serve/http/http_handler.h"
#include "serve/http/http_options.h"

namespace spillway {

struct HttpCounters {
  uint64_t connections = 0;  // since the start, as all that follow
  uint64_t refused_connections = 0;
  uint64_t requests = 0;     // that came to the handler whole
  uint64_t cut_streams = 0;  // readers that were too slow
  uint64_t socket_writes = 0;
  uint64_t wake_ups = 0;  // of I/O threads by replies
  // Now.
  uint64_t open_connections = 0;
  uint64_t open_replies = 0;
  uint64_t bodies_bytes = 0;  // of requests that come or wait to be read
};

// Listens from construction until stop_now() or destruction. Owns its threads and connections; a
// connection stays on one thread. All calls are thread-safe, but none that waits may come from an
// I/O thread, i.e. from a handler or a callback.
class HttpServer {
 public:
  // `handler` must live as long as the server. Throws kInvalidArgument for options that make no
  // sense, kIo where it cannot listen.
  HttpServer(HttpOptions options, HttpHandler& handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;  // the one it listens at

  // What becomes of those who connect while the server drains.
  enum class Newcomers : uint8_t { kRefused, kHeard };
  // Begins to drain: requests that arrive from now on are marked `draining`, and answers that begin
  // from now on are the last of their connection. Newcomers find nobody listening, or are heard
  // like the others (and told by the handler to go elsewhere).
  void stop_accepting(Newcomers newcomers = Newcomers::kRefused);
  // Waits until no reply is open; false when some are at the deadline.
  [[nodiscard]] bool wait_until_answered(std::chrono::milliseconds most) const;
  // Cuts what is still open (their callbacks are called) and ends all threads.
  void stop_now();

  // In place of HttpOptions::most_bodies_bytes, from now on.
  void limit_bodies(size_t most_bytes);

  HttpCounters counters() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway
