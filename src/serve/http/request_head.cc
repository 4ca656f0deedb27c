// SPDX-License-Identifier: Apache-2.0
#include "serve/http/request_head.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/printable.h"
#include "serve/api_error.h"
#include "serve/http/http_text.h"

namespace spillway {
namespace {

[[noreturn]] void refuse(int status, const char* code, const std::string& message) {
  throw ApiError(status, code, "", message);
}
[[noreturn]] void refuse(const std::string& message) { refuse(400, "invalid_http", message); }

std::string_view take_line(std::string_view& text) {
  const size_t end = text.find("\r\n");
  SPW_ASSERT(end != std::string_view::npos);
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 2);
  return line;
}

// Returns the part of an absolute "http://host/path?query" that a server needs.
std::string_view origin_form(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equal_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    const size_t path = target.find_first_of("/?", scheme.size());
    if (path == std::string_view::npos) return "/";
    if (path == scheme.size()) refuse("the target has no host");
    return target.substr(path);
  }
  return target;
}

void parse_target(HttpRequest& request) {
  std::string_view target = request.target;
  for (const char c : target) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7F || c == '#')
      refuse("the target has a character that must be encoded");
  }
  if (target == "*" && request.method == HttpMethod::kOptions) {
    request.path = "*";
    return;
  }
  target = origin_form(target);
  const size_t question = std::min(target.find('?'), target.size());
  if (question < target.size()) request.query = target.substr(question + 1);
  auto path = try_percent_decode(target.substr(0, question));
  if (!path) refuse("the target has a % that encodes nothing");
  request.path = path->empty() ? "/" : std::move(*path);
  if (request.path.front() != '/') refuse("the target does not begin with '/'");
}

void parse_request_line(std::string_view line, const HttpOptions& options, RequestHead& head) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last)
    refuse("the request line is not 'METHOD TARGET HTTP/1.1'");
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_http_token(method)) refuse("the method is no word");
  if (version.size() != 8 || !version.starts_with("HTTP/") || version[6] != '.')
    refuse("the request line does not end with 'HTTP/1.1'");
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    refuse(505, "http_version_not_supported", "this server speaks HTTP/1.1 and 1.0");
  if (target.size() > options.most_target_bytes)
    refuse(414, "uri_too_long",
           fmt::format("the target has more than {} bytes", options.most_target_bytes));
  const auto known = try_http_method(method);
  if (!known)
    refuse(501, "method_not_implemented",
           fmt::format("this server knows no method {}", printable(method, 32)));
  head.is_http_10 = version == "HTTP/1.0";
  head.keep_alive = !head.is_http_10;
  head.request->method = *known;
  head.request->target = target;
  parse_target(*head.request);
}

uint64_t parse_content_length(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos)
    refuse("Content-Length is not one number");
  uint64_t value = 0;
  for (const char c : text) {
    const auto digit = static_cast<uint64_t>(c - '0');
    // The result exceeds every limit, so the answer will be 413 and the number does not overflow.
    if (value > (std::numeric_limits<uint64_t>::max() - digit) / 10)
      return std::numeric_limits<uint64_t>::max();
    value = value * 10 + digit;
  }
  return value;
}

bool is_host(std::string_view text) {
  constexpr std::string_view kOthers = "-._~:[]%!$&'()*+;=";
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != std::string_view::npos;
  });
}

// Collects what headers say about the connection and the body.
class Framing {
 public:
  explicit Framing(RequestHead& head) : head_(head) {}

  void add(const HttpHeader& header) {
    if (header.name == "content-length") {
      if (has_length_) refuse("there is more than one Content-Length");
      has_length_ = true;
      head_.content_length = parse_content_length(header.value);
    } else if (header.name == "transfer-encoding") {
      // Other codings would have to be decoded before the body is known to be small.
      if (head_.is_chunked || !equal_ignoring_case(header.value, "chunked"))
        refuse("Transfer-Encoding is not 'chunked'");
      head_.is_chunked = true;
    } else if (header.name == "host") {
      if (has_host_) refuse("there is more than one Host");
      if (!is_host(header.value)) refuse("Host is no host");
      has_host_ = true;
    } else if (header.name == "connection") {
      if (list_has(header.value, "close")) has_close_ = true;
      if (list_has(header.value, "keep-alive")) has_keep_alive_ = true;
    } else if (header.name == "expect") {
      if (!equal_ignoring_case(header.value, "100-continue"))
        refuse(417, "expectation_failed", "Expect is not '100-continue'");
      head_.expects_continue = !head_.is_http_10;
    }
  }

  void finish() {
    if (head_.is_chunked && has_length_)
      refuse("there is both Content-Length and Transfer-Encoding");
    if (head_.is_chunked && head_.is_http_10) refuse("HTTP/1.0 has no Transfer-Encoding");
    if (!has_host_ && !head_.is_http_10) refuse("there is no Host");
    if (head_.is_http_10) head_.keep_alive = has_keep_alive_;
    if (has_close_) head_.keep_alive = false;
  }

 private:
  RequestHead& head_;
  bool has_length_ = false;
  bool has_host_ = false;
  bool has_close_ = false;
  bool has_keep_alive_ = false;
};

}  // namespace

HttpHeader parse_header_line(std::string_view line) {
  if (line.starts_with(' ') || line.starts_with('\t')) refuse("a header goes on in a second line");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) refuse("a header has no ':'");
  const std::string_view name = line.substr(0, colon);
  // This also refuses spaces before the colon: some programs drop them, others drop the header.
  if (!is_http_token(name)) refuse("a header's name is no word");
  return {lower_ascii(name), std::string(trim_blanks(line.substr(colon + 1)))};
}

RequestHead parse_request_head(std::string_view text, const HttpOptions& options) {
  RequestHead head;
  head.request = std::make_shared<HttpRequest>();
  parse_request_line(take_line(text), options, head);
  Framing framing(head);
  while (!text.empty()) {
    head.request->headers.push_back(parse_header_line(take_line(text)));
    framing.add(head.request->headers.back());
  }
  framing.finish();
  return head;
}

}  // namespace spillway
