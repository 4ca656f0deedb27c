// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 server for a handler, with limits, timeouts, and an orderly shutdown.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "serve/http/http_handler.h"
#include "serve/http/http_options.h"

namespace spillway {

struct HttpCounters {
  uint64_t connections = 0;  // this and the following count since the start
  uint64_t refused_connections = 0;
  uint64_t requests = 0;     // complete requests given to the handler
  uint64_t cut_streams = 0;  // answers whose client was too slow
  uint64_t socket_writes = 0;
  uint64_t wake_ups = 0;  // how often replies woke I/O threads
  // The following are present values.
  uint64_t open_connections = 0;
  uint64_t open_replies = 0;
  uint64_t bodies_bytes = 0;  // bodies that arrive or wait to be parsed
};

// Listens from construction until stop_now() or destruction. Owns its threads and connections; a
// connection stays on one thread. All calls are thread-safe, but calls that wait must not come from
// an I/O thread, i.e. from a handler or a callback.
class HttpServer {
 public:
  // `handler` must live as long as the server. Throws kInvalidArgument for options that make no
  // sense, kIo if it cannot listen.
  HttpServer(HttpOptions options, HttpHandler& handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;  // the port it listens on

  // Whether new connections are refused or accepted while the server drains.
  enum class NewConnections : uint8_t { kRefused, kAccepted };
  // Begins to drain: requests that arrive from now on are marked `draining`, and answers that begin
  // from now on are the last of their connection. New connections are refused by the system, or are
  // accepted as before (and refused by the handler).
  void stop_accepting(NewConnections new_connections = NewConnections::kRefused);
  // Waits until no reply is open; returns false if some still are after `most`.
  [[nodiscard]] bool wait_until_answered(std::chrono::milliseconds most) const;
  // Cuts off what is still open, calling the callbacks, and ends all threads.
  void stop_now();

  // Replaces HttpOptions::most_bodies_bytes from now on.
  void limit_bodies(size_t most_bytes);

  HttpCounters counters() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway
