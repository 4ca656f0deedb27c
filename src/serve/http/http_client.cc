// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_client.h"

#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "serve/http/socket_wait.h"

namespace spillway {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const HttpUrl& url) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(url.port);
  const int code = ::getaddrinfo(url.host.c_str(), port.c_str(), &hints, &found);
  SPW_CHECK(code == 0, kIo, "no address of {} is known: {}", url.host, ::gai_strerror(code));
  return {found, &::freeaddrinfo};
}

// Returns 0, or an errno.
int finish_connecting(int fd, const addrinfo& address, std::chrono::milliseconds most,
                      const std::atomic<bool>& cancel) {
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  if (!wait_for_socket(fd, POLLOUT, most, cancel)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

}  // namespace

HttpClient::HttpClient(HttpUrl url, const std::atomic<bool>& cancel, HttpClientLimits limits)
    : url_(std::move(url)), cancel_(cancel), limits_(limits) {}

FileDescriptor HttpClient::connect() const {
  const Addresses addresses = resolve(url_);
  int error = 0;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    FileDescriptor fd(
        ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    error =
        fd.is_open() ? finish_connecting(fd.get(), *at, limits_.connect_timeout, cancel_) : errno;
    if (error != 0) continue;
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    // Keep-alive detects that the server's machine vanished during a long wait.
    ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    return fd;
  }
  fail(ErrorCode::kIo, "no server answers at http://{}: {}; is it running?", url_.authority(),
       std::strerror(error));
}

HttpResponse HttpClient::ask(std::string_view method, std::string_view path,
                             const std::vector<HttpHeader>& headers, std::string_view body) const {
  std::string message = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", method,
                                    url_.path, path, url_.authority());
  for (const HttpHeader& header : headers)
    message += fmt::format("{}: {}\r\n", header.name, header.value);
  message += "\r\n";
  message += body;
  HttpResponse response(connect(), limits_, cancel_);
  response.send(message);
  response.read_head();
  return response;
}

HttpResponse HttpClient::get(std::string_view path, const std::vector<HttpHeader>& headers) const {
  return ask("GET", path, headers, "");
}

HttpResponse HttpClient::post(std::string_view path, const std::vector<HttpHeader>& headers,
                              std::string_view json) const {
  std::vector<HttpHeader> all = headers;
  all.push_back({"Content-Type", "application/json"});
  all.push_back({"Content-Length", std::to_string(json.size())});
  return ask("POST", path, all, json);
}

}  // namespace spillway
