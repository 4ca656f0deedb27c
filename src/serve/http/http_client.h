// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 client that waits for its answers: one request, one connection.
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

// What the client takes from a server, and how long it waits for it.
struct HttpClientLimits {
  std::chrono::milliseconds connect_timeout{10'000};  // for each address of a name
  // Without a byte: long, since a prompt that goes through weights on a disk takes its time.
  std::chrono::milliseconds silence_timeout{600'000};
  size_t most_head_bytes = 64 << 10;
  size_t most_chunk_bytes = 16 << 20;
};

// An answer whose head is there; its body comes as it is read. Destroying it closes the connection,
// which tells the server that nobody wants the rest. Not thread-safe. All that waits throws
// kCancelled when `cancel` is set, kIo for silence, a connection that breaks and broken HTTP.
class HttpResponse {
 public:
  int status() const { return status_; }
  // "" where there is none; `name` in lower case.
  std::string_view header(std::string_view name) const;

  // Appends what comes next; false at the end of the body.
  [[nodiscard]] bool read_some(std::string& body);
  // All of it, or its first `most_bytes`.
  std::string read_up_to(size_t most_bytes);

 private:
  friend class HttpClient;
  HttpResponse(FileDescriptor socket, const HttpClientLimits& limits,
               const std::atomic<bool>& cancel);

  void send(std::string_view bytes);
  void read_head();
  void parse_head(std::string_view head);
  void choose_framing();
  // Appends what the socket has; false at its end.
  bool receive();
  void wait(short events) const;

  FileDescriptor socket_;
  HttpClientLimits limits_;
  const std::atomic<bool>* cancel_;
  int status_ = 0;
  std::vector<HttpHeader> headers_;
  std::string buffer_;                         // received, not yet read
  std::unique_ptr<HttpOptions> chunk_limits_;  // where the decoder finds them
  std::optional<ChunkedDecoder> chunks_;       // a body in chunks, or
  std::optional<uint64_t> left_bytes_;         // one with a length, or what comes until the end
};

class HttpClient {
 public:
  // `cancel` must outlive it and its answers.
  HttpClient(HttpUrl url, const std::atomic<bool>& cancel, HttpClientLimits limits = {});

  const HttpUrl& url() const { return url_; }
  // `path` follows the URL's own. Returns when the answer's head is there.
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
