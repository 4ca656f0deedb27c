// SPDX-License-Identifier: Apache-2.0
// The client's side of an answer: parses its head, and receives its body.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "serve/api_error.h"
#include "serve/http/http_client.h"
#include "serve/http/http_text.h"
#include "serve/http/request_head.h"
#include "serve/http/response_head.h"
#include "serve/http/socket_wait.h"

namespace spillway {
namespace {

[[noreturn]] void fail_broken(std::string_view why) {
  fail(ErrorCode::kIo, "the server's answer is no HTTP that can be read: {}", why);
}
[[noreturn]] void fail_cut() {
  fail(ErrorCode::kIo, "the server closed the connection in the middle of its answer");
}

// The server's parsers throw ApiError, which here means that the answer is broken.
template <class Work>
auto as_client(const Work& work) {
  try {
    return work();
  } catch (const ApiError& error) {
    fail_broken(error.what());
  }
}

// Returns the status in "HTTP/1.1 200 OK", or 0 if `line` is no status line.
int status_in(std::string_view line) {
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ') return 0;
  int status = 0;
  const auto [end, error] = std::from_chars(line.data() + 9, line.data() + 12, status);
  const bool ends = line.size() == 12 || line[12] == ' ';
  return error == std::errc() && end == line.data() + 12 && status >= 100 && ends ? status : 0;
}

}  // namespace

HttpResponse::HttpResponse(FileDescriptor socket, const HttpClientLimits& limits,
                           const std::atomic<bool>& cancel)
    : socket_(std::move(socket)), limits_(limits), cancel_(&cancel) {}

std::string_view HttpResponse::header(std::string_view name) const {
  for (const HttpHeader& header : headers_) {
    if (header.name == name) return header.value;
  }
  return {};
}

void HttpResponse::wait(short events) const {
  if (wait_for_socket(socket_.get(), events, limits_.silence_timeout, *cancel_)) return;
  fail(ErrorCode::kIo, "the server has said nothing for {} s",
       std::chrono::duration_cast<std::chrono::seconds>(limits_.silence_timeout).count());
}

void HttpResponse::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
      continue;
    }
    if (errno == EINTR) continue;
    // A server that refuses a long request need not read all of it; the answer says why.
    if (errno == EPIPE || errno == ECONNRESET) return;
    SPW_CHECK(errno == EAGAIN || errno == EWOULDBLOCK, kIo, "cannot send to the server: {}",
              std::strerror(errno));
    wait(POLLOUT | POLLIN);
    char first = 0;
    if (::recv(socket_.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) >= 0) return;
  }
}

bool HttpResponse::receive() {
  char bytes[16 << 10];
  while (true) {
    const ssize_t count = ::recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
    if (count >= 0) return count > 0;
    if (errno == EINTR) continue;
    if (errno == ECONNRESET && status_ == 0) return false;  // nothing has been received
    if (errno == ECONNRESET) fail_cut();
    SPW_CHECK(errno == EAGAIN || errno == EWOULDBLOCK, kIo, "cannot read from the server: {}",
              std::strerror(errno));
    wait(POLLIN);
  }
}

void HttpResponse::read_head() {
  constexpr std::string_view kEnd = "\r\n\r\n";
  size_t searched = 0, read = 0;
  do {
    size_t end;
    while ((end = buffer_.find(kEnd, searched)) == std::string::npos) {
      if (buffer_.size() > limits_.most_head_bytes) fail_broken("its head has no end");
      searched = buffer_.size() < kEnd.size() ? 0 : buffer_.size() - kEnd.size() + 1;
      if (receive()) continue;
      SPW_CHECK(!buffer_.empty(), kIo, "the server closed the connection without an answer");
      fail_cut();
    }
    read += end + kEnd.size();
    if (read > limits_.most_head_bytes) fail_broken("its head is too long");
    parse_head(std::string_view(buffer_).substr(0, end));
    buffer_.erase(0, end + kEnd.size());
    searched = 0;
  } while (status_ < 200);  // "100 Continue" and the like are not final answers
  choose_framing();
}

void HttpResponse::parse_head(std::string_view head) {
  const size_t line_end = std::min(head.find("\r\n"), head.size());
  status_ = status_in(head.substr(0, line_end));
  if (status_ == 0) fail_broken("it does not begin with HTTP/1.1 and a status");
  headers_.clear();
  head.remove_prefix(std::min(line_end + 2, head.size()));
  while (!head.empty()) {
    const size_t end = std::min(head.find("\r\n"), head.size());
    headers_.push_back(as_client([&] { return parse_header_line(head.substr(0, end)); }));
    head.remove_prefix(std::min(end + 2, head.size()));
  }
}

void HttpResponse::choose_framing() {
  if (!status_has_body(status_)) {
    left_bytes_ = 0;
    return;
  }
  if (const std::string_view coding = header("transfer-encoding"); !coding.empty()) {
    if (!equal_ignoring_case(coding, "chunked")) fail_broken("its transfer encoding is not known");
    chunk_limits_ = std::make_unique<HttpOptions>();
    chunk_limits_->most_body_bytes = limits_.most_chunk_bytes;
    chunk_limits_->most_chunks = std::numeric_limits<size_t>::max();
    chunks_.emplace(*chunk_limits_);
    return;
  }
  if (const std::string_view length = header("content-length"); !length.empty()) {
    uint64_t bytes = 0;
    const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), bytes);
    if (error != std::errc() || end != length.data() + length.size())
      fail_broken("its length is no number");
    left_bytes_ = bytes;
  }
}

bool HttpResponse::read_some(std::string& body) {
  if (left_bytes_ == 0 || (chunks_ && chunks_->is_done())) return false;
  if (buffer_.empty() && !receive()) {
    if (chunks_ || left_bytes_) fail_cut();
    return false;
  }
  const std::string bytes = std::exchange(buffer_, {});
  if (chunks_) {
    // Decodes into an empty string each time: the limits are for what comes in one read, not for a
    // long answer.
    std::string piece;
    as_client([&] { return chunks_->feed(bytes, piece); });
    body += piece;
    return true;
  }
  const size_t count = std::min<uint64_t>(left_bytes_.value_or(bytes.size()), bytes.size());
  if (left_bytes_) *left_bytes_ -= count;
  body.append(bytes, 0, count);
  return true;
}

std::string HttpResponse::read_up_to(size_t most_bytes) {
  std::string body;
  while (body.size() < most_bytes && read_some(body)) {
  }
  if (body.size() > most_bytes) body.resize(most_bytes);
  return body;
}

}  // namespace spillway
