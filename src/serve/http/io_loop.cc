// SPDX-License-Identifier: Apache-2.0
#include "serve/http/io_loop.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/thread_name.h"
#include "serve/http/response_head.h"

namespace spillway {
namespace {

// Deadlines are seconds long, so being this late does not matter.
constexpr std::chrono::milliseconds kTick{50};
// Most open connections beyond the limits; descriptors are reserved for them (connection_limit.cc).
constexpr size_t kMostRefused = 64;

}  // namespace

IoLoop::IoLoop(ServerContext& context)
    : context_(context), io_(1), work_(boost::asio::make_work_guard(io_)), timer_(io_) {
  inbox_ = std::make_shared<LoopInbox>([this] {
    context_.wake_ups.fetch_add(1, std::memory_order_relaxed);
    boost::asio::post(io_, [this] { deliver(); });
  });
  thread_ = std::thread([this] { run(); });
}

void IoLoop::run() {
  name_this_thread("http");
  while (true) {
    try {
      io_.run();
      return;
    } catch (const std::exception& error) {
      log_warning("http: {}", error.what());
    }
  }
}

void IoLoop::stop() {
  if (!thread_.joinable()) return;
  boost::asio::post(io_, [this] { close_all(); });
  work_.reset();
  thread_.join();
}

void IoLoop::close_all() {
  is_stopping_ = true;
  inbox_->close();
  timer_.cancel();
  const auto closing = std::exchange(connections_, {});
  for (const auto& connection : closing) connection->close();
}

void IoLoop::add_connection(boost::asio::ip::tcp::socket socket, HttpConnection::Standing standing,
                            ClientConnections::Place place) {
  auto connection = std::make_shared<HttpConnection>(*this, context_, std::move(socket), standing,
                                                     std::move(place));
  boost::asio::post(io_, [this, connection = std::move(connection), standing] {
    if (is_stopping_) return;
    if (standing != HttpConnection::Standing::kWelcome) {
      make_room_for_another_refusal();
      refused_.push_back(connection);
    }
    connections_.insert(connection);
    arm_timer();
    connection->run_step([&] { connection->start(); });
  });
}

// If there are too many connections beyond the limits, closes the oldest one: the new one may be a
// health check.
void IoLoop::make_room_for_another_refusal() {
  std::erase_if(refused_, [](const auto& connection) { return connection.expired(); });
  if (refused_.size() < kMostRefused) return;
  if (const auto oldest = refused_.front().lock()) oldest->run_step([&] { oldest->end_refused(); });
  refused_.pop_front();
}

void IoLoop::remove(HttpConnection& connection) {
  connections_.erase(connection.shared_from_this());
}

void IoLoop::deliver() {
  inbox_->take(messages_);
  // Applies all messages of a connection first, and then writes to its socket once.
  for (ReplyMessage& message : messages_) {
    if (message.reply->connection == nullptr) continue;
    const auto connection = message.reply->connection->shared_from_this();
    connection->run_step([&] {
      if (connection->apply(message)) touched_.push_back(connection);
    });
  }
  messages_.clear();
  for (const auto& connection : touched_) connection->run_step([&] { connection->go_on(); });
  touched_.clear();
}

void IoLoop::arm_timer() {
  if (timer_runs_ || is_stopping_ || connections_.empty()) return;
  timer_runs_ = true;
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    timer_runs_ = false;
    if (error || is_stopping_) return;
    const auto now = std::chrono::steady_clock::now();
    // check_time() may close connections, which removes them from the set.
    touched_.assign(connections_.begin(), connections_.end());
    for (const auto& connection : touched_)
      connection->run_step([&] { connection->check_time(now); });
    touched_.clear();
    arm_timer();
  });
}

const std::string& IoLoop::date() {
  const std::time_t now = std::time(nullptr);
  if (std::exchange(date_s_, now) != now) date_ = http_date(now);
  return date_;
}

}  // namespace spillway
