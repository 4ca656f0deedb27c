// SPDX-License-Identifier: Apache-2.0
// A small blocking HTTP/1.1 client: one connection for each request.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.h"
#include "serve/http/chunked_decoder.h"
#include "serve/http/http_options.h"
#include "serve/http/http_request.h"
#include "serve/http/http_url.h"

namespace spillway {

// Limits of what the client accepts from a server, and how long it waits.
struct HttpClientLimits {
  std::chrono::milliseconds connect_timeout{10'000};  // for each address of the name
  // Longest time without a byte: long, since a prompt takes its time if weights stream from a disk.
  std::chrono::milliseconds silence_timeout{600'000};
  size_t most_head_bytes = 64 << 10;
  size_t most_chunk_bytes = 16 << 20;
};

// An answer whose head has arrived; its body is received as it is read. Destroying it closes the
// connection, so that the server can stop. Not thread-safe. Functions that wait throw kCancelled
// when `cancel` is set, and kIo after a timeout, for a broken connection and for invalid HTTP.
class HttpResponse {
 public:
  int status() const { return status_; }
  // Returns "" if there is no such header; `name` is in lower case.
  std::string_view header(std::string_view name) const;

  // Appends the next bytes of the body; returns false at its end.
  [[nodiscard]] bool read_some(std::string& body);
  // Returns the body, or its first `most_bytes`.
  std::string read_up_to(size_t most_bytes);

 private:
  friend class HttpClient;
  HttpResponse(FileDescriptor socket, const HttpClientLimits& limits,
               const std::atomic<bool>& cancel);

  void send(std::string_view bytes);
  void read_head();
  void parse_head(std::string_view head);
  void choose_framing();
  // Appends what the socket has; returns false at its end.
  bool receive();
  void wait(short events) const;

  FileDescriptor socket_;
  HttpClientLimits limits_;
  const std::atomic<bool>* cancel_;
  int status_ = 0;
  std::vector<HttpHeader> headers_;
  std::string buffer_;                         // received, not yet returned
  std::unique_ptr<HttpOptions> chunk_limits_;  // on the heap, since the decoder keeps a reference
  std::optional<ChunkedDecoder> chunks_;       // set for a chunked body
  std::optional<uint64_t> left_bytes_;  // set for a body with a length; else it lasts until the end
};

class HttpClient {
 public:
  // `cancel` must outlive the client and its answers.
  HttpClient(HttpUrl url, const std::atomic<bool>& cancel, HttpClientLimits limits = {});

  const HttpUrl& url() const { return url_; }
  // `path` is appended to the URL's own. Returns when the answer's head has arrived.
  HttpResponse get(std::string_view path, const std::vector<HttpHeader>& headers) const;
  HttpResponse post(std::string_view path, const std::vector<HttpHeader>& headers,
                    std::string_view json) const;

 private:
  FileDescriptor connect() const;
  HttpResponse ask(std::string_view method, std::string_view path,
                   const std::vector<HttpHeader>& headers, std::string_view body) const;

  HttpUrl url_;
  const std::atomic<bool>& cancel_;
  HttpClientLimits limits_;
};

}  // namespace spillway
