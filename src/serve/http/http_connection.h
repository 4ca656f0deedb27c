// SPDX-License-Identifier: Apache-2.0
// One connection: reads a request, has it answered, and so on until one side has enough.
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

// The I/O thread that a connection belongs to (IoLoop), which alone calls either of them.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // Where replies leave their messages.
  virtual const std::shared_ptr<LoopInbox>& inbox() const = 0;
  // The connection is closed: it is not to be held any longer.
  virtual void remove(HttpConnection& connection) = 0;
  // What was read is taken out of it before the next connection reads.
  virtual std::span<char> read_buffer() = 0;
  virtual const std::string& date() = 0;  // now, as answers have it
};

// A state machine of one I/O thread: not thread-safe, all calls come from there. Sockets are read
// and written without waiting, as epoll says; a read is always wanted, also while an answer is on
// its way, which is how a client that leaves is noticed at once. Answers come as messages of their
// reply. Who calls must hold it, and does so by way of run_step().
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // Whether its requests are answered. One that is too many is only asked whether it is a probe
  // (HttpHandler::is_probe), and told to come again if it is not.
  enum class Standing : uint8_t { kWelcome, kTooMany, kTooManyOfClient };

  HttpConnection(ConnectionOwner& owner, ServerContext& context,
                 boost::asio::ip::tcp::socket socket, Standing standing,
                 ClientConnections::Place place);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Runs one step: what is thrown there (out of memory, most likely) is the end of this connection,
  // not of the server.
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
  // One too many, and its time is over: says so and closes at once.
  void end_refused();
  // Takes a message without writing to the socket. True when go_on() must follow, the first time
  // since the last one.
  bool apply(ReplyMessage& message);
  // Writes and reads as far as that is possible now.
  void go_on();
  void check_time(std::chrono::steady_clock::time_point now);
  // At once, whatever is on its way; the reply's callback is called.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kReading, kAnswering, kLingering, kClosed };

  // Reading.
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

  // Answering.
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
  bool peer_is_done_ = false;  // has closed its direction
  bool is_probed_ = false;     // and was sent something, to see whether it is still there
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point write_deadline_ = Clock::time_point::max();

  RequestParser parser_;
  std::string pipelined_;  // came before its turn
  size_t counted_body_bytes_ = 0;
  size_t lingered_bytes_ = 0;
  Clock::time_point linger_end_ = {};

  // Of the request that is being answered.
  std::shared_ptr<const HttpRequest> request_;
  std::shared_ptr<ReplyState> reply_;
  Clock::time_point began_ = Clock::now();
  bool keep_alive_ = false;  // what the client wants
  bool is_http_10_ = false;
  bool has_head_ = false;     // the answer's is on its way
  bool is_chunked_ = false;   // the answer
  bool sends_body_ = true;    // not to HEAD
  bool is_complete_ = false;  // all of the answer is in out_ or further
  bool closes_ = false;       // after this answer
  int status_ = 0;
  std::string id_;  // as the client was told

  std::string out_;  // not yet written, from out_start_ on
  size_t out_start_ = 0;
  uint64_t written_bytes_ = 0;  // of this answer
  uint64_t written_at_deadline_ = 0;
};

}  // namespace spillway
