// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_connection.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/log_event.h"
#include "base/printable.h"

namespace spillway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kReadsInARow = 4;  // most reads before other connections get their turn
// A connection beyond the limits has this long to show that it is a health check.
constexpr std::chrono::milliseconds kRefusedTime{1'000};
constexpr size_t kWriteStepBytes = 64 << 10;  // documented at HttpOptions::write_timeout
// Bodies up to this size are not counted, so that large ones cannot keep them out; the number of
// connections bounds their memory.
constexpr size_t kUncountedBodyBytes = 64 << 10;
constexpr size_t kKeptOutBytes = 64 << 10;  // capacity of out_ that is kept between answers

bool would_block(const error_code& error) {
  return error == asio::error::would_block || error == asio::error::try_again ||
         error == asio::error::interrupted;
}

std::string address_text(const tcp::socket& socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "?";
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

std::shared_ptr<const HttpRequest> without_body(HttpRequest& request) {
  std::string body = std::exchange(request.body, {});
  const auto counted = std::exchange(request.counted, nullptr);
  auto head = std::make_shared<const HttpRequest>(request);
  request.body = std::move(body);
  request.counted = counted;
  return head;
}

// Returns a handle that subtracts `bytes` from the counter when its last copy is dropped.
std::shared_ptr<const void> count_until_dropped(const std::shared_ptr<std::atomic<size_t>>& counter,
                                                size_t bytes) {
  return {counter.get(), [counter, bytes](const void*) { counter->fetch_sub(bytes); }};
}

// Makes the system close the connection if the peer does not react for this long, even if nothing
// is sent.
void notice_dead_peers(tcp::socket& socket, std::chrono::milliseconds most) {
  const int fd = socket.native_handle();
  const int on = 1, idle_s = 30, interval_s = 10, probes = 3;
  const int most_ms = static_cast<int>(most.count());
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof(most_ms));
}

}  // namespace

HttpConnection::HttpConnection(ConnectionOwner& owner, ServerContext& context, tcp::socket socket,
                               Standing standing, ClientConnections::Place place)
    : owner_(owner),
      context_(context),
      socket_(std::move(socket)),
      peer_(address_text(socket_)),
      standing_(standing),
      place_(std::move(place)),
      parser_(context.options) {
  context_.open_connections.fetch_add(1);
  if (standing_ == Standing::kWelcome) context_.welcome_connections.fetch_add(1);
}

HttpConnection::~HttpConnection() {
  context_.open_connections.fetch_sub(1);
  if (standing_ == Standing::kWelcome) context_.welcome_connections.fetch_sub(1);
}

void HttpConnection::start() {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
  if (context_.options.send_buffer_bytes > 0)
    socket_.set_option(
        asio::socket_base::send_buffer_size(static_cast<int>(context_.options.send_buffer_bytes)),
        ignored);
  notice_dead_peers(socket_, context_.options.write_timeout);
  deadline_ = Clock::now() + (standing_ == Standing::kWelcome
                                  ? context_.options.head_timeout
                                  : std::min(context_.options.head_timeout, kRefusedTime));
  // Read now, since the request has often arrived already.
  read();
}

ApiError HttpConnection::too_many() const {
  return ApiError(503, "too_many_connections", "",
                  standing_ == Standing::kTooManyOfClient
                      ? fmt::format("this address has {} connections, and may have no more; close "
                                    "some, or try again later",
                                    context_.clients.most())
                      : "too many connections; try again later");
}

void HttpConnection::end_refused() {
  if (state_ == State::kReading) {
    refuse(too_many());
    go_on();
  }
  close();
}

bool HttpConnection::apply(ReplyMessage& message) {
  if (state_ != State::kAnswering || message.reply != reply_) return false;
  using Kind = ReplyMessage::Kind;
  switch (message.kind) {
    case Kind::kAnswer:
      put_answer(*message.answer);
      break;
    case Kind::kBegin:
      put_head(*message.answer, {std::nullopt, !is_http_10_});
      count_waiting(out_.size() - out_start_);
      break;
    case Kind::kChunk:
      put_chunk(message.chunk);
      break;
    case Kind::kFinish:
      if (is_chunked_ && sends_body_) out_ += "0\r\n\r\n";
      is_complete_ = true;
      break;
    case Kind::kAbandoned:
      abandon();
      break;
    case Kind::kTooSlow:
      context_.cut_streams.fetch_add(1, std::memory_order_relaxed);
      cut("reads too slowly");
      return false;
  }
  return !std::exchange(is_touched_, true);
}

void HttpConnection::go_on() {
  is_touched_ = false;
  while (state_ != State::kClosed) {
    write();
    if (state_ == State::kAnswering && is_complete_ && out_.empty()) {
      end_answer();
    } else if (state_ == State::kReading && pipelined_.empty() && peer_is_done_) {
      close();  // all requests that came before are answered
    } else if (state_ == State::kReading && !pipelined_.empty()) {
      const std::string bytes = std::exchange(pipelined_, {});
      take_bytes(bytes);
    } else {
      break;
    }
  }
  if (wants_bytes()) wait_readable();
}

void HttpConnection::check_time(Clock::time_point now) {
  if (now >= write_deadline_) {
    context_.cut_streams.fetch_add(1, std::memory_order_relaxed);
    return cut("stopped reading");
  }
  if (state_ == State::kAnswering && !wants_bytes()) {
    const int tcp = tcp_state();
    if (tcp == TCP_CLOSE) return cut("client has gone");
    if (tcp == TCP_CLOSE_WAIT && !is_probed_) {
      probe_peer();
      return go_on();
    }
  }
  if (now < deadline_) return;
  if (state_ == State::kReading && standing_ != Standing::kWelcome) {
    refuse(too_many());
    go_on();
  } else if (state_ == State::kReading && parser_.stage() != RequestParser::Stage::kNothing) {
    refuse(ApiError(408, "request_timeout", "", "the request took too long to arrive"));
    go_on();
  } else if (state_ != State::kAnswering) {
    close();
  }
}

void HttpConnection::close() {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();
  state_ = State::kClosed;
  error_code ignored;
  socket_.close(ignored);
  owner_.remove(*this);
  const auto reply = reply_;
  release();
  if (reply != nullptr) reply->go();
}

// These functions read requests.

bool HttpConnection::wants_bytes() const {
  if (state_ == State::kAnswering)
    return !peer_is_done_ && pipelined_.size() < context_.options.most_pipelined_bytes;
  return state_ != State::kClosed;
}

void HttpConnection::wait_readable() {
  if (std::exchange(is_read_pending_, true)) return;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code&) {
    self->is_read_pending_ = false;
    // The following read reports any error of the socket.
    self->run_step([&] { self->read(); });
  });
}

void HttpConnection::read() {
  for (int i = 0; i < kReadsInARow && wants_bytes(); ++i) {
    const auto buffer = owner_.read_buffer();
    error_code error;
    const size_t count = socket_.read_some(asio::buffer(buffer.data(), buffer.size()), error);
    if (would_block(error)) break;
    if (error) {
      peer_closed(error == asio::error::eof);
      break;
    }
    take_bytes({buffer.data(), count});
    if (count < buffer.size()) break;
  }
  go_on();
}

void HttpConnection::take_bytes(std::string_view bytes) {
  if (state_ == State::kLingering) {
    lingered_bytes_ += bytes.size();
    if (lingered_bytes_ > context_.options.most_lingered_bytes) return close();
    // A client that still sends has not read the answer yet, so it gets more time.
    deadline_ = std::min(linger_end_, Clock::now() + context_.options.linger_timeout);
    return;
  }
  if (state_ == State::kReading) {
    try {
      bytes.remove_prefix(parse(bytes));
    } catch (const ApiError& error) {
      return refuse(error);
    } catch (const std::exception& error) {
      log_warning("http: a request could not be read: {}", error.what());
      return refuse(ApiError(500, "internal_error", "", "the server had an error"));
    }
  }
  // Bytes after a request that ends the connection are dropped.
  if (state_ == State::kAnswering && !closes_) pipelined_ += bytes;
}

// Parses at most one request; returns how many bytes were part of it.
size_t HttpConnection::parse(std::string_view bytes) {
  using Stage = RequestParser::Stage;
  size_t taken = 0;
  while (state_ == State::kReading && taken < bytes.size()) {
    if (parser_.stage() == Stage::kNothing) {
      began_ = Clock::now();
      deadline_ = began_ + context_.options.head_timeout;
    }
    taken += parser_.feed(bytes.substr(taken));
    if (parser_.stage() == Stage::kHeadDone) take_head();
    if (state_ != State::kReading) break;
    count_body();
    if (parser_.stage() == Stage::kDone) dispatch();
  }
  return taken;
}

void HttpConnection::take_head() {
  const RequestHead& head = parser_.head();
  keep_alive_ = head.keep_alive;
  is_http_10_ = head.is_http_10;
  request_ = head.request;
  head.request->peer = peer_;
  head.request->id = context_.next_request_id();
  head.request->draining = context_.draining.load(std::memory_order_relaxed);
  if (standing_ != Standing::kWelcome) {
    if (!context_.handler.is_probe(*request_)) throw too_many();
    keep_alive_ = false;
  }
  auto answer = context_.cors.try_preflight(*request_);
  if (!answer) answer = context_.handler.try_answer_head(*request_);
  if (answer) {
    closes_ = head.has_body();
    begin_answering();
    put_answer(*answer);
    return;
  }
  const bool expects_continue = head.expects_continue;
  parser_.begin_body();
  if (parser_.stage() != RequestParser::Stage::kBody) return;
  deadline_ = Clock::now() + context_.options.body_timeout;
  if (expects_continue) out_ += "HTTP/1.1 100 Continue\r\n\r\n";
}

void HttpConnection::count_body() {
  const size_t bytes = parser_.body_bytes();
  if (bytes <= std::max(counted_body_bytes_, kUncountedBodyBytes)) return;
  const size_t more = bytes - counted_body_bytes_;
  const size_t most = context_.most_bodies_bytes.load(std::memory_order_relaxed);
  if (bytes > most)
    throw ApiError(413, "request_too_large", "",
                   fmt::format("the body takes {} bytes of memory, and this server has {} for "
                               "bodies; send less, or several requests",
                               bytes, most));
  counted_body_bytes_ = bytes;
  if (context_.bodies_bytes->fetch_add(more) + more > most)
    throw ApiError(503, "server_busy", "", "the server holds too many requests; try again later");
}

void HttpConnection::dispatch() {
  const std::shared_ptr<HttpRequest> request = parser_.take();
  // The body belongs to the handler alone: once the handler drops it, it is freed and no longer
  // counted.
  request->counted =
      count_until_dropped(context_.bodies_bytes, std::exchange(counted_body_bytes_, 0));
  request_ = without_body(*request);
  begin_answering();
  reply_ = std::make_shared<ReplyState>(owner_.inbox(), context_.options.most_stream_bytes);
  reply_->connection = this;
  context_.replies.add();
  context_.requests.fetch_add(1, std::memory_order_relaxed);
  const auto reply = std::make_shared<HttpReply>(reply_);
  try {
    context_.handler.handle(request, reply);
  } catch (const ApiError& error) {
    if (reply_->phase.load() == ReplyState::Phase::kWaiting) reply->send_error(error);
  } catch (const std::exception& error) {
    // The reply is dropped, which sends a 500.
    log_warning("http: {} {} failed: {}", http_method_name(request_->method),
                printable(request_->path), error.what());
  }
}

void HttpConnection::peer_closed(bool in_order) {
  if (state_ != State::kAnswering) return close();
  if (!in_order) return cut("client has gone");
  // The client may still read, and what it sent before is answered. Most answers are quick; during
  // a slow one check_time() tests whether the client is still there.
  peer_is_done_ = true;
}

// Returns the connection's TCP state. While the client's bytes are not read, only the system knows
// that it has closed; if they fill all buffers, not even the system does, and a client that left is
// noticed when it is written to, like one that stays but does not read.
int HttpConnection::tcp_state() {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_state;
}

// A client that has closed its direction either still reads or is gone. These look the same until
// something is sent: the system of a client that is gone answers with a reset, which check_time()
// sees. So this sends bytes that change no answer: before the head an interim response (RFC 9110,
// section 15.2), and between two chunks a zero, with which the next chunk's size may begin (RFC
// 9112, section 7.1).
void HttpConnection::probe_peer() {
  is_probed_ = true;
  if (is_complete_ || is_http_10_ || !out_.empty()) return;
  const size_t before = out_.size();
  if (!has_head_) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
  } else if (is_chunked_ && sends_body_) {
    out_ += "0";
  }
  if (reply_ != nullptr) count_waiting(out_.size() - before);
}

// These functions send answers.

void HttpConnection::begin_answering() {
  state_ = State::kAnswering;
  deadline_ = Clock::time_point::max();
}

// After a request that could not be parsed, the following bytes cannot be trusted to be another
// request.
void HttpConnection::refuse(const ApiError& error) {
  if (state_ == State::kReading) request_ = parser_.has_head() ? parser_.head().request : nullptr;
  closes_ = true;
  pipelined_.clear();
  begin_answering();
  std::vector<HttpHeader> headers;
  if (error.status() == 503) headers.push_back({"Retry-After", "1"});
  put_answer(error_answer(error, std::move(headers)));
}

void HttpConnection::put_answer(const HttpAnswer& answer) {
  ResponseFraming framing;
  if (status_has_body(answer.status)) framing.content_length = answer.body.size();
  put_head(answer, framing);
  if (sends_body_) out_ += answer.body;
  is_complete_ = true;
}

void HttpConnection::put_head(const HttpAnswer& answer, ResponseFraming framing) {
  status_ = answer.status;
  has_head_ = true;
  is_chunked_ = framing.is_chunked;
  sends_body_ = status_has_body(answer.status) &&
                (request_ == nullptr || request_->method != HttpMethod::kHead);
  // A body with neither length nor chunks ends with the connection.
  const bool has_end =
      framing.is_chunked || framing.content_length || !status_has_body(answer.status);
  const bool is_last = peer_is_done_ && pipelined_.empty();
  if (!keep_alive_ || !has_end || is_last || context_.draining.load(std::memory_order_relaxed))
    closes_ = true;
  framing.closes = closes_;
  framing.says_keep_alive = is_http_10_ && !closes_;
  std::string more = request_id_line(answer);
  if (request_ != nullptr) more += context_.cors.lines(*request_);
  out_ += response_head(answer, framing, owner_.date(), more);
}

// Returns "" if the answer has such a header itself.
std::string HttpConnection::request_id_line(const HttpAnswer& answer) {
  for (const HttpHeader& header : answer.headers) {
    if (header.name != kRequestIdHeader) continue;
    id_ = header.value;
    return "";
  }
  const bool has_id = request_ != nullptr && !request_->id.empty();
  id_ = has_id ? request_->id : context_.next_request_id();
  return fmt::format("{}: {}\r\n", kRequestIdHeader, id_);
}

void HttpConnection::put_chunk(const std::string& chunk) {
  if (!sends_body_) {
    count_taken(chunk.size());
    return;
  }
  const size_t before = out_.size();
  if (is_chunked_) fmt::format_to(std::back_inserter(out_), "{:x}\r\n", chunk.size());
  out_ += chunk;
  if (is_chunked_) out_ += "\r\n";
  count_waiting(out_.size() - before - chunk.size());
}

void HttpConnection::count_waiting(size_t bytes) {
  reply_->waiting_bytes.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

void HttpConnection::count_taken(size_t bytes) {
  reply_->waiting_bytes.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

void HttpConnection::abandon() {
  if (!has_head_) {
    put_answer(error_answer(ApiError(500, "internal_error", "", "the server had an error")));
    return;
  }
  // The last chunk is missing, so the client notices that the answer is incomplete.
  closes_ = true;
  is_complete_ = true;
}

void HttpConnection::write() {
  while (!out_.empty() && !is_write_pending_) {
    context_.socket_writes.fetch_add(1, std::memory_order_relaxed);
    error_code error;
    const size_t count =
        socket_.write_some(asio::buffer(out_.data() + out_start_, out_.size() - out_start_), error);
    if (would_block(error)) return wait_writable();
    if (error) return cut("client has gone");
    out_start_ += count;
    written_bytes_ += count;
    if (reply_ != nullptr) count_taken(count);
    if (out_start_ == out_.size()) {
      out_.clear();
      out_start_ = 0;
      if (out_.capacity() > kKeptOutBytes) out_.shrink_to_fit();
      write_deadline_ = Clock::time_point::max();
    } else if (out_start_ > out_.size() / 2) {
      out_.erase(0, out_start_);
      out_start_ = 0;
    }
  }
}

void HttpConnection::wait_writable() {
  if (write_deadline_ == Clock::time_point::max() ||
      written_bytes_ - written_at_deadline_ >= kWriteStepBytes) {
    write_deadline_ = Clock::now() + context_.options.write_timeout;
    written_at_deadline_ = written_bytes_;
  }
  is_write_pending_ = true;
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const error_code&) {
    self->is_write_pending_ = false;
    self->run_step([&] { self->go_on(); });
  });
}

void HttpConnection::end_answer() {
  log_access("");
  const bool closes = closes_;  // as the head said; else the client may send another request
  // An early answer leaves the parser at the end of the head.
  if (!closes && parser_.stage() == RequestParser::Stage::kHeadDone) {
    parser_.begin_body();
    parser_.take();
  }
  release();
  if (closes) return linger();
  state_ = State::kReading;
  deadline_ = Clock::now() + context_.options.idle_timeout;
}

// Shuts down the sending side and then reads on. Closing a socket with unread bytes would make the
// system reset the connection, and the client might lose the answer that it was just sent.
void HttpConnection::linger() {
  if (peer_is_done_) return close();
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  state_ = State::kLingering;
  pipelined_.clear();
  linger_end_ = Clock::now() + (standing_ == Standing::kWelcome ? context_.options.longest_linger
                                                                : context_.options.linger_timeout);
  deadline_ = std::min(linger_end_, Clock::now() + context_.options.linger_timeout);
}

void HttpConnection::cut(std::string_view why) {
  if (state_ == State::kClosed) return;
  if (state_ == State::kAnswering) log_access(why);
  // Drops what the system still buffers for a client that does not read; it would stay for long.
  error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  close();
}

// Forgets the request and its answer.
void HttpConnection::release() {
  if (reply_ != nullptr) {
    if (is_complete_) reply_->forget_callback();
    reply_->connection = nullptr;
    reply_.reset();
    context_.replies.remove();
  }
  request_.reset();
  context_.bodies_bytes->fetch_sub(std::exchange(counted_body_bytes_, 0));
  has_head_ = is_chunked_ = is_complete_ = closes_ = false;
  sends_body_ = true;
  id_.clear();
  status_ = 0;
  written_bytes_ = written_at_deadline_ = 0;
}

void HttpConnection::log_access(std::string_view note) {
  context_.handler.answered(request_.get(), status_ > 0 ? status_ : kStatusClientGone);
  if (log_level() > LogLevel::kInfo) return;
  const std::string method(request_ == nullptr ? "" : http_method_name(request_->method));
  const std::string target(request_ == nullptr ? parser_.first_line() : request_->target);
  // A client that left before its answer was not told the id.
  const std::string id = id_.empty() && request_ != nullptr ? request_->id : id_;
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  log_event(LogLevel::kInfo,
            fmt::format("http {} \"{}{}{}\" {} {} B {:.1f} ms{}{}{}{}", peer_, method,
                        method.empty() ? "" : " ", printable(target), status_, written_bytes_,
                        1e3 * seconds, id.empty() ? "" : " ", id, note.empty() ? "" : ", ", note),
            {{"event", "http"},
             {"id", id},
             {"peer", peer_},
             {"method", method},
             {"target", printable(target)},
             {"status", int64_t{status_}},
             {"bytes", static_cast<int64_t>(written_bytes_)},
             {"seconds", seconds},
             {"note", std::string(note)}});
}

}  // namespace spillway
