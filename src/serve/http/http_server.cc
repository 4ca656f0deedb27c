// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "serve/http/io_loop.h"
#include "serve/http/server_context.h"

namespace spillway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause{100};

template <class Bytes>
std::string text_of(const Bytes& bytes, size_t count) {
  return {reinterpret_cast<const char*>(bytes.data()), count};
}

// Returns the bytes that identify a client: for IPv6 the first 8, since a site may use all
// addresses below that prefix.
std::string client_of(const asio::ip::address& address) {
  if (address.is_v4()) return text_of(address.to_v4().to_bytes(), 4);
  const auto bytes = address.to_v6().to_bytes();
  if (address.to_v6().is_v4_mapped()) return text_of(bytes, bytes.size()).substr(12);
  return text_of(bytes, 8);
}

HttpOptions checked(HttpOptions options) {
  SPW_CHECK(options.io_threads >= 1 && options.io_threads <= 64, kInvalidArgument,
            "{} I/O threads; 1 to 64 make sense", options.io_threads);
  SPW_CHECK(options.most_connections >= 1, kInvalidArgument,
            "a server needs at least one connection");
  SPW_CHECK(options.most_head_bytes >= 128 && options.most_target_bytes >= 16, kInvalidArgument,
            "limits for heads that no request can keep");
  return options;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpOptions options, HttpHandler& handler) : context_(checked(std::move(options)), handler) {
    for (int i = 0; i < context_.options.io_threads; ++i)
      loops_.push_back(std::make_unique<IoLoop>(context_));
    acceptor_.emplace(loops_.front()->io());
    pause_.emplace(loops_.front()->io());
    listen();
    asio::post(loops_.front()->io(), [this] { accept(); });
  }
  ~Impl() { stop_now(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  uint16_t port() const { return port_; }

  void stop_accepting(NewConnections new_connections) {
    context_.draining.store(true);
    if (new_connections == NewConnections::kRefused) close_acceptor();
  }

  bool wait_until_answered(std::chrono::milliseconds most) const {
    return context_.replies.wait_for_none(most);
  }

  void stop_now() {
    context_.draining.store(true);
    close_acceptor();
    const std::lock_guard lock(stop_mutex_);
    is_stopped_ = true;
    for (const auto& loop : loops_) loop->stop();
  }

  void limit_bodies(size_t most_bytes) { context_.most_bodies_bytes.store(most_bytes); }

  HttpCounters counters() const {
    HttpCounters result;
    result.connections = context_.connections.load();
    result.refused_connections = context_.refused_connections.load();
    result.requests = context_.requests.load();
    result.cut_streams = context_.cut_streams.load();
    result.socket_writes = context_.socket_writes.load();
    result.wake_ups = context_.wake_ups.load();
    result.open_connections = context_.open_connections.load();
    result.open_replies = context_.replies.count();
    result.bodies_bytes = context_.bodies_bytes->load();
    return result;
  }

 private:
  void listen();
  void accept();
  void take(tcp::socket socket);

  // Closes the acceptor and waits for that; nothing can connect from then on.
  void close_acceptor() {
    const std::lock_guard lock(stop_mutex_);
    if (is_stopped_) return;
    std::promise<void> closed;
    asio::post(loops_.front()->io(), [&] {
      error_code ignored;
      acceptor_->close(ignored);
      pause_->cancel();
      closed.set_value();
    });
    closed.get_future().wait();
  }

  ServerContext context_;
  std::vector<std::unique_ptr<IoLoop>> loops_;
  // These run on the first loop.
  std::optional<tcp::acceptor> acceptor_;
  std::optional<asio::steady_timer> pause_;
  size_t next_loop_ = 0;
  uint16_t port_ = 0;
  std::mutex stop_mutex_;
  bool is_stopped_ = false;
};

void HttpServer::Impl::listen() {
  const HttpOptions& options = context_.options;
  error_code error;
  tcp::resolver resolver(loops_.front()->io());
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  SPW_CHECK(!error, kInvalidArgument, "no address for host '{}': {}", printable(options.host),
            error.message());
  for (const auto& entry : found) {
    const tcp::endpoint endpoint = entry.endpoint();
    error_code ignored;
    acceptor_->close(ignored);
    acceptor_->open(endpoint.protocol(), error);
    // A restarted server need not wait until old connections are forgotten.
    if (!error) acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_->bind(endpoint, error);
    if (!error) acceptor_->listen(asio::socket_base::max_listen_connections, error);
    if (!error) break;
  }
  SPW_CHECK(!error, kIo, "cannot listen on {}:{}: {}", printable(options.host), options.port,
            error.message());
  port_ = acceptor_->local_endpoint().port();
}

void HttpServer::Impl::accept() {
  if (!acceptor_->is_open()) return;
  IoLoop& loop = *loops_[next_loop_];
  acceptor_->async_accept(loop.io(), [this](const error_code& error, tcp::socket socket) {
    if (!acceptor_->is_open()) return;
    if (!error) {
      take(std::move(socket));
      return accept();
    }
    // Some clients give up before they are accepted.
    if (error == asio::error::connection_aborted || error == asio::error::interrupted)
      return accept();
    // No descriptor or memory is left; retry when connections have ended.
    log_warning("http: cannot accept connections for now: {}", error.message());
    pause_->expires_after(kAcceptPause);
    pause_->async_wait([this](const error_code& cancelled) {
      if (!cancelled) accept();
    });
  });
}

void HttpServer::Impl::take(tcp::socket socket) {
  IoLoop& loop = *loops_[next_loop_];
  next_loop_ = (next_loop_ + 1) % loops_.size();
  context_.connections.fetch_add(1, std::memory_order_relaxed);
  using Standing = HttpConnection::Standing;
  Standing standing = Standing::kWelcome;
  error_code unknown;
  const tcp::endpoint peer = socket.remote_endpoint(unknown);
  if (unknown) return;  // the client has gone already
  ClientConnections::Place place = context_.clients.try_take(client_of(peer.address()));
  if (place == nullptr) standing = Standing::kTooManyOfClient;
  if (context_.welcome_connections.load() >= context_.options.most_connections)
    standing = Standing::kTooMany;
  if (standing != Standing::kWelcome)
    context_.refused_connections.fetch_add(1, std::memory_order_relaxed);
  loop.add_connection(std::move(socket), standing, std::move(place));
}

HttpServer::HttpServer(HttpOptions options, HttpHandler& handler)
    : impl_(std::make_unique<Impl>(std::move(options), handler)) {}
HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::stop_accepting(NewConnections new_connections) {
  impl_->stop_accepting(new_connections);
}
bool HttpServer::wait_until_answered(std::chrono::milliseconds most) const {
  return impl_->wait_until_answered(most);
}
void HttpServer::stop_now() { impl_->stop_now(); }
void HttpServer::limit_bodies(size_t most_bytes) { impl_->limit_bodies(most_bytes); }
HttpCounters HttpServer::counters() const { return impl_->counters(); }

}  // namespace spillway
