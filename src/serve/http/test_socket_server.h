// SPDX-License-Identifier: Apache-2.0
// A server for tests that sends any bytes to its clients.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/file_descriptor.h"
#include "serve/http/http_url.h"

namespace spillway {

// The server's end of a connection. Waits end after some seconds.
class TestConnection {
 public:
  explicit TestConnection(FileDescriptor fd) : fd_(std::move(fd)) {}

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }
  // Returns what comes up to and including `end`.
  std::string read_until(std::string_view end) {
    std::string text;
    char c = 0;
    while (!text.ends_with(end) && is_readable() && ::recv(fd_.get(), &c, 1, 0) == 1) text += c;
    return text;
  }
  bool is_closed_by_peer() {
    char bytes[4096];
    while (is_readable()) {
      if (::recv(fd_.get(), bytes, sizeof(bytes), 0) <= 0) return true;
    }
    return false;
  }

 private:
  bool is_readable() {
    pollfd poller = {fd_.get(), POLLIN, 0};
    return ::poll(&poller, 1, 20'000) > 0;
  }
  FileDescriptor fd_;
};

// Calls `answer` for one connection after the other, in a thread of its own; the connection ends
// when `answer` returns.
class TestSocketServer {
 public:
  explicit TestSocketServer(std::function<void(TestConnection&)> answer)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), answer_(std::move(answer)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    ::bind(listener_.get(), any, size);
    ::listen(listener_.get(), 16);
    ::getsockname(listener_.get(), any, &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~TestSocketServer() {
    stops_ = true;
    thread_.join();
  }

  HttpUrl url() const { return {.host = "127.0.0.1", .port = port_, .path = ""}; }

 private:
  void serve() {
    while (!stops_) {
      pollfd poller = {listener_.get(), POLLIN, 0};
      if (::poll(&poller, 1, 10) <= 0) continue;
      TestConnection connection(
          FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
      answer_(connection);
    }
  }

  FileDescriptor listener_;
  std::function<void(TestConnection&)> answer_;
  uint16_t port_ = 0;
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

}  // namespace spillway
