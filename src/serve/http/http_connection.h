// SPDX-License-Identifier: Apache-2.0
// One HTTP connection: reads a request, sends its answer, and repeats until either side closes.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/log.h"
#include "serve/api_error.h"
#include "serve/http/http_request.h"
#include "serve/http/reply_state.h"
#include "serve/http/request_parser.h"
#include "serve/http/response_head.h"
#include "serve/http/server_context.h"

namespace spillway {

class HttpConnection;

// The I/O thread that a connection belongs to (IoLoop). Only this thread calls its functions and
// the connection's.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // Returns the inbox where replies put their messages.
  virtual const std::shared_ptr<LoopInbox>& inbox() const = 0;
  // Drops the reference to a connection that has been closed.
  virtual void remove(HttpConnection& connection) = 0;
  // Returns a buffer for reading; its contents must be used before the next connection reads.
  virtual std::span<char> read_buffer() = 0;
  virtual const std::string& date() = 0;  // present time as a Date header has it
};

// A state machine on one I/O thread; not thread-safe, all calls come from that thread. Sockets are
// read and written without blocking, when epoll reports them ready. The connection also reads while
// an answer is being sent, so that a client that leaves is noticed immediately. Answers arrive as
// messages of their reply. Callers must hold a reference, and call through run_step().
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // Whether requests are answered. A connection beyond the limits is only read to see whether it is
  // a health check (HttpHandler::is_probe), and is otherwise answered 503.
  enum class Standing : uint8_t { kWelcome, kTooMany, kTooManyOfClient };

  HttpConnection(ConnectionOwner& owner, ServerContext& context,
                 boost::asio::ip::tcp::socket socket, Standing standing,
                 ClientConnections::Place place);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Runs one step: an exception there (most likely out of memory) closes this connection and does
  // not end the server.
  template <class Step>
  void run_step(Step&& step) {
    try {
      step();
    } catch (const std::exception& error) {
      log_warning("http: a connection is closed: {}", error.what());
      close();
    }
  }

  void start();
  // Refuses a connection beyond the limits, if it has not been answered yet, and closes it.
  void end_refused();
  // Applies a message without writing to the socket. Returns true for the first message since the
  // last go_on(), which the caller must then call.
  bool apply(ReplyMessage& message);
  // Writes and reads as far as possible without blocking.
  void go_on();
  void check_time(std::chrono::steady_clock::time_point now);
  // Closes immediately, whatever is being sent; calls the reply's callback.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kReading, kAnswering, kLingering, kClosed };

  // These read requests.
  bool wants_bytes() const;
  void wait_readable();
  void read();
  void take_bytes(std::string_view bytes);
  size_t parse(std::string_view bytes);
  void take_head();
  void count_body();
  void dispatch();
  void peer_closed(bool in_order);
  int tcp_state();
  void probe_peer();

  // These send answers.
  void begin_answering();
  void refuse(const ApiError& error);
  void put_answer(const HttpAnswer& answer);
  void put_head(const HttpAnswer& answer, ResponseFraming framing);
  std::string request_id_line(const HttpAnswer& answer);
  void put_chunk(const std::string& chunk);
  void count_waiting(size_t bytes);
  void count_taken(size_t bytes);
  void abandon();
  void write();
  void wait_writable();
  void end_answer();
  void linger();
  ApiError too_many() const;

  void cut(std::string_view why);
  void release();
  void log_access(std::string_view note);

  ConnectionOwner& owner_;
  ServerContext& context_;
  boost::asio::ip::tcp::socket socket_;
  std::string peer_;
  const Standing standing_;
  const ClientConnections::Place place_;
  State state_ = State::kReading;
  bool is_read_pending_ = false;
  bool is_write_pending_ = false;
  bool is_touched_ = false;
  bool peer_is_done_ = false;  // the client has closed its direction
  bool is_probed_ = false;     // a probe was sent to see whether it is still there
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point write_deadline_ = Clock::time_point::max();

  RequestParser parser_;
  std::string pipelined_;  // received before its turn
  size_t counted_body_bytes_ = 0;
  size_t lingered_bytes_ = 0;
  Clock::time_point linger_end_ = {};

  // The request that is being answered.
  std::shared_ptr<const HttpRequest> request_;
  std::shared_ptr<ReplyState> reply_;
  Clock::time_point began_ = Clock::now();
  bool keep_alive_ = false;  // the client wants to keep the connection
  bool is_http_10_ = false;
  bool has_head_ = false;     // the answer's head is in out_
  bool is_chunked_ = false;   // whether the answer is chunked
  bool sends_body_ = true;    // false for an answer to HEAD
  bool is_complete_ = false;  // all of the answer is in out_ or sent
  bool closes_ = false;       // closes the connection after this answer
  int status_ = 0;
  std::string id_;  // the request id that the client was told

  std::string out_;  // not yet written, from out_start_ on
  size_t out_start_ = 0;
  uint64_t written_bytes_ = 0;  // written of this answer
  uint64_t written_at_deadline_ = 0;
};

}  // namespace spillway
