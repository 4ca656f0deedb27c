// SPDX-License-Identifier: Apache-2.0
// The client's end of a connection, for tests: sends any bytes and reads answers.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "serve/http/http_text.h"

namespace spillway {

struct TestResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool is_whole = false;  // false: the connection ended before its end
};

// Every wait ends after some seconds, and the awaited bytes are then missing.
class TestClient {
 public:
  // `receive_bytes` is the size of the system's buffer, small for slow clients.
  explicit TestClient(uint16_t port, int receive_bytes = 0)
      : fd_(connect_to(port, receive_bytes)) {}

  static FileDescriptor connect_to(uint16_t port, int receive_bytes) {
    FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (receive_bytes > 0)
      ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      return FileDescriptor();
    return fd;
  }

  bool is_connected() const { return fd_.is_open(); }
  int fd() const { return fd_.get(); }

  // Returns false if the other side does not accept more.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }
  // Sends as much as possible without waiting; returns how much that was.
  size_t send_without_waiting(std::string_view bytes) {
    const ssize_t count =
        ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return count > 0 ? static_cast<size_t>(count) : 0;
  }

  // Returns nullopt if the connection ends before a head is complete. 100 (Continue) counts as an
  // answer.
  std::optional<TestResponse> read_response(bool is_to_head = false) {
    while (buffer_.find("\r\n\r\n") == std::string::npos) {
      if (!read_more()) return std::nullopt;
    }
    TestResponse response = take_head();
    if (is_to_head || response.status == 100 || response.status == 204) {
      response.is_whole = true;
    } else if (response.headers.contains("content-length")) {
      const size_t length = std::strtoull(response.headers["content-length"].c_str(), nullptr, 10);
      response.is_whole = take(length, response.body);
    } else if (response.headers.contains("transfer-encoding")) {
      take_chunks(response);
    } else {
      while (read_more()) {
      }
      response.body.swap(buffer_);
      response.is_whole = true;
    }
    return response;
  }

  // Returns the next answer that is not an interim one.
  std::optional<TestResponse> read_final_response() {
    auto response = read_response();
    while (response && response->status == 100) response = read_response();
    return response;
  }

  std::optional<TestResponse> ask(std::string_view request, bool is_to_head = false) {
    send(request);
    return read_response(is_to_head);
  }

  // Returns one chunk of an answer; "" for the last one, nullopt if the connection ends.
  std::optional<std::string> read_chunk() {
    std::string line;
    if (!take_line(line)) return std::nullopt;
    const size_t length = std::strtoull(line.c_str(), nullptr, 16);
    std::string chunk, end;
    if (!take(length, chunk) || !take_line(end) || !end.empty()) return std::nullopt;
    return chunk;
  }
  TestResponse read_head() {
    while (buffer_.find("\r\n\r\n") == std::string::npos) {
      if (!read_more()) return {};
    }
    return take_head();
  }

  // Returns whether the other side ends the connection, after any bytes that still come.
  bool is_closed_by_peer() {
    while (read_more()) {
    }
    return has_ended_;
  }
  bool has_ended() const { return has_ended_; }
  // Returns whether nothing has come for this long and the connection is still open.
  bool is_quiet(std::chrono::milliseconds time) {
    pollfd poller = {fd_.get(), POLLIN, 0};
    return buffer_.empty() && ::poll(&poller, 1, static_cast<int>(time.count())) == 0;
  }
  size_t read_some(size_t bytes) {
    std::string buffer(bytes, '\0');
    const ssize_t count = ::recv(fd_.get(), buffer.data(), bytes, 0);
    return count > 0 ? static_cast<size_t>(count) : 0;
  }

  void close() { fd_.close(); }
  void close_own_direction() { ::shutdown(fd_.get(), SHUT_WR); }
  void reset() {
    const linger now = {1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    fd_.close();
  }

 private:
  bool read_more() {
    if (has_ended_) return false;
    pollfd poller = {fd_.get(), POLLIN, 0};
    if (::poll(&poller, 1, kMostMs) <= 0) return false;
    char bytes[16 << 10];
    const ssize_t count = ::recv(fd_.get(), bytes, sizeof(bytes), 0);
    if (count <= 0) {
      has_ended_ = true;
      return false;
    }
    buffer_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  bool take(size_t count, std::string& to) {
    while (buffer_.size() < count) {
      if (!read_more()) return false;
    }
    to.append(buffer_, 0, count);
    buffer_.erase(0, count);
    return true;
  }
  bool take_line(std::string& line) {
    size_t end;
    while ((end = buffer_.find("\r\n")) == std::string::npos) {
      if (!read_more()) return false;
    }
    line = buffer_.substr(0, end);
    buffer_.erase(0, end + 2);
    return true;
  }
  TestResponse take_head() {
    TestResponse response;
    std::string line;
    take_line(line);
    if (line.starts_with("HTTP/1.1 ")) response.status = std::atoi(line.c_str() + 9);
    while (take_line(line) && !line.empty()) {
      const size_t colon = line.find(':');
      response.headers[lower_ascii(line.substr(0, colon))] =
          trim_blanks(std::string_view(line).substr(colon + 1));
    }
    return response;
  }
  void take_chunks(TestResponse& response) {
    while (auto chunk = read_chunk()) {
      if (chunk->empty()) {
        response.is_whole = true;
        return;
      }
      response.body += *chunk;
    }
  }

  static constexpr int kMostMs = 20'000;
  FileDescriptor fd_;
  std::string buffer_;
  bool has_ended_ = false;
};

}  // namespace spillway
