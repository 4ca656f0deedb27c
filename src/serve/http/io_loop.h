// SPDX-License-Identifier: Apache-2.0
// One I/O thread with its connections, their deadlines, and the messages of their replies.
#pragma once

#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <ctime>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "serve/http/http_connection.h"
#include "serve/http/reply_state.h"
#include "serve/http/server_context.h"

namespace spillway {

// Runs one io_context on one thread: a connection's state needs no lock, and messages for all
// connections of the thread come with one wake-up.
class IoLoop : public ConnectionOwner {
 public:
  explicit IoLoop(ServerContext& context);
  ~IoLoop() override { stop(); }
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  // These may be called from any thread.
  boost::asio::io_context& io() { return io_; }
  void add_connection(boost::asio::ip::tcp::socket socket, HttpConnection::Standing standing,
                      ClientConnections::Place place);
  // Closes all connections and ends the thread; called from any other thread.
  void stop();

  // These may be called from its own thread only.
  const std::shared_ptr<LoopInbox>& inbox() const override { return inbox_; }
  void remove(HttpConnection& connection) override;
  std::span<char> read_buffer() override { return read_buffer_; }
  const std::string& date() override;

 private:
  void run();
  void deliver();
  void arm_timer();
  void close_all();
  void make_room_for_another_refusal();

  ServerContext& context_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer timer_;
  bool timer_runs_ = false;
  bool is_stopping_ = false;
  std::shared_ptr<LoopInbox> inbox_;
  std::vector<ReplyMessage> messages_;
  std::vector<std::shared_ptr<HttpConnection>> touched_;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;
  std::deque<std::weak_ptr<HttpConnection>> refused_;  // beyond the limits, the oldest first
  std::array<char, 64 << 10> read_buffer_;
  std::time_t date_s_ = 0;
  std::string date_;
  std::thread thread_;
};

}  // namespace spillway
